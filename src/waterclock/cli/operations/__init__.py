"""Commands that set up, check, measure and maintain a database."""
