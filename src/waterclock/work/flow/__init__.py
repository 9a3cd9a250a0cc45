"""The path of a delivery through a worker: it is fetched and dispatched, and then its outcome is written."""
