"""The HTTP server for topics and message tables. Requests need a token."""
