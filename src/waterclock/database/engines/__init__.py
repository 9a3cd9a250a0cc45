"""Database-specific code for engines, transactions and errors: a file for each."""
