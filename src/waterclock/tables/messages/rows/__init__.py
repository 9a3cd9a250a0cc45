"""Shared by all statements on a table's rows: locks, refused rows, process heartbeats."""
