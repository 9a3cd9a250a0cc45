"""The commands of a gateway: ingest, batching, and a supervisor that runs all parts."""
