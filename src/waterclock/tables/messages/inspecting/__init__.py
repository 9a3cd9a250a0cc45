"""Read-only operations: peek, explain, statistics."""
