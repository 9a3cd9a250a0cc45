"""Writes to message tables and topics, as sinks of Spark."""
