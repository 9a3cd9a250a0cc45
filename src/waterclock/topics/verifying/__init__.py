"""Verifying and repairing a topic's files, and importing files that were moved."""
