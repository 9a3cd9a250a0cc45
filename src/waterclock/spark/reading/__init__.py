"""Reads topics and message tables as sources of Spark."""
