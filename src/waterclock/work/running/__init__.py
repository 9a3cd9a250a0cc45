"""The loops, threads and processes of a worker."""
