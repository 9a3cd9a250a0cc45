"""Background work of a consumer: its heartbeat, the due messages of schedules, and its exit from a table."""
