"""Topics: logs of messages, kept in ledgers and found by time."""
