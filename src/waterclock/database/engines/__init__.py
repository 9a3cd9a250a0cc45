"""What differs between the databases for engines, transactions and errors: a file for each."""
