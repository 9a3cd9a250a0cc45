"""The path of a delivery through a worker: fetching, dispatching, and writing the outcome."""
