"""Handlers, outcomes, counts and sources, which all parts of a worker share."""
