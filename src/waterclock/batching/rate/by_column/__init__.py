"""Batching by rate over whole columns: the compiled kernel."""
