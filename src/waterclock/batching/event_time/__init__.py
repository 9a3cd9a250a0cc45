"""Batches by event time."""
