"""Code that all statements on a table's rows share: locks, refused rows and process heartbeats."""
