"""What differs between the databases."""
