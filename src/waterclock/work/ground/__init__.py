"""Shared by all parts of a worker: handlers, outcomes, counts, sources."""
