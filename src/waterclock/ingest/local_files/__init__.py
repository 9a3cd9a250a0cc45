"""Ingest of files that may grow: their formats, how they are recognised, and how far each one is appended."""
