"""Threads, processes and the event loop of a worker."""
