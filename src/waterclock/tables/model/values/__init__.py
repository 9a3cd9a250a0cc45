"""Values that callers give or plain SQL wrote, checked before a database is asked."""
