"""The database-specific code for engines, transactions and errors. Each database has a file."""
