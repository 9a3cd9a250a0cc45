"""Message tables on PostgreSQL."""
