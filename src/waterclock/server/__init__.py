"""The server: an HTTP interface to topics and message tables, with tokens."""
