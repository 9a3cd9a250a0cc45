"""Metrics of a database and of long-running commands for Prometheus, and their liveness and readiness probes."""
