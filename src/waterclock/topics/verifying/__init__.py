"""Verifies and repairs a topic's files, and imports files that were moved."""
