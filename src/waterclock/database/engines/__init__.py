"""The database-specific code for engines, transactions and errors, one file for each database."""
