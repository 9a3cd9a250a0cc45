"""The database-specific statements for message tables."""
