"""Looking without touching: peek, explain, statistics."""
