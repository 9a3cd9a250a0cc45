"""Pipelines as files: read, checked and run."""
