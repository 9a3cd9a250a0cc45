"""Helpers for statements on a table's rows: locks, refused rows and process heartbeats."""
