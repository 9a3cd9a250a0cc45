"""Claims as data: the request, the claimed messages, and the messages that claims skip."""
