"""Background work of a consumer: heartbeats, due messages of schedules, and leaving a table."""
