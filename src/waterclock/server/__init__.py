"""The server: an HTTP interface, protected by tokens, to topics and message tables."""
