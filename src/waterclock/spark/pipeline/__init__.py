"""Pipelines in files: reads, checks and runs them."""
