"""Validation of values from callers or from plain SQL."""
