"""Ingests files that may grow: their formats, their identity, and the progress of each."""
