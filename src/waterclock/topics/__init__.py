"""Topics: logs of messages, stored in ledgers and searched by time."""
