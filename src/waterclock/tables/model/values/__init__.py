"""Validation of values that callers give or plain SQL wrote, before a database sees them."""
