"""Messages that must be handled in order."""
