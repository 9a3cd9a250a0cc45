"""Message tables: queues in ordinary SQL tables. Messages of a group keep their order."""
