"""Prometheus metrics of a database and of long-running commands, and probes of whether a command is alive and ready."""
