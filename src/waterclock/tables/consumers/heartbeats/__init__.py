"""Background work of a consumer: its heartbeat, due messages of schedules, and its exit from a table."""
