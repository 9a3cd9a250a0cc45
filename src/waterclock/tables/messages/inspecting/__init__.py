"""Reads messages without changing them: peek, explain, statistics."""
