"""Batching by event time."""
