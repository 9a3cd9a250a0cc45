"""Message tables spread over several databases."""
