"""Groups: messages of a table that must be handled in order."""
