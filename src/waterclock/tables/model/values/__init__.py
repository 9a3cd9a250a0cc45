"""Validates values from callers, and values that plain SQL wrote."""
