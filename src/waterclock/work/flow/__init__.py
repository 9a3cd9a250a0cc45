"""A delivery's way through a worker: fetched, dispatched, its outcome written."""
