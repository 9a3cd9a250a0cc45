"""Background work of a consumer: sends heartbeats, puts the due messages of schedules, and leaves a table."""
