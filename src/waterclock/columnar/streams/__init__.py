"""The batching rules as streams over columns: each takes rows, and returns outcomes and a state."""
