"""Commands on groups: release, close, skip, move."""
