"""Metrics of a database and of long-running commands for Prometheus, and whether they are alive and ready."""
