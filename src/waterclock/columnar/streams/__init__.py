"""Applies the batching rules to streams of columns. Each rule takes rows, and returns outcomes and a state."""
