"""Runs a gateway from one file: ingest, batching and work, under one process that stops them in order."""
