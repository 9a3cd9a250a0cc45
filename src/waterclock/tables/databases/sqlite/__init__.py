"""Message tables on SQLite."""
