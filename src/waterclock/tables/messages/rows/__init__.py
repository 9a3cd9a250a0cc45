"""Locks, refused rows and process heartbeats, which all statements on a table's rows share."""
