"""Claims as data: the request, the claimed messages, and those that claims skip."""
