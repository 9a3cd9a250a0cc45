"""One table over several databases."""
