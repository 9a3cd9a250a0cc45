"""Topics: logs of messages, kept in ledgers and searched by time."""
