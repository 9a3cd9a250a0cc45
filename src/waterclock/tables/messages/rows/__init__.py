"""What every statement on a table's rows shares: locks, refused rows, process heartbeats."""
