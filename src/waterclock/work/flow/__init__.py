"""The path of a delivery through a worker: fetched, dispatched, its outcome written."""
