"""What a consumer does in the background: heartbeats, schedules' due messages, and how it leaves."""
