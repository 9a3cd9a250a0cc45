"""The threads, processes and event loop of a worker."""
