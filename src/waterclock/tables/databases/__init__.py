"""Database-specific code."""
