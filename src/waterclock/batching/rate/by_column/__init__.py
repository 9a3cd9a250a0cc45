"""Batches whole columns of messages by rate, with a compiled kernel."""
