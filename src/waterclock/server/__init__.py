"""The HTTP server for topics and message tables, protected by tokens."""
