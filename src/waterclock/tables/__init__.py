"""Message tables: queues in ordinary SQL tables, and the groups of messages that keep their order."""
