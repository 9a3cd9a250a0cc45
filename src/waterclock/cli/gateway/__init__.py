"""The commands of a gateway: ingest, batching, and a supervisor of all parts."""
