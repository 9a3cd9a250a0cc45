"""The commands of a gateway: ingest, batching, and all parts under one process."""
