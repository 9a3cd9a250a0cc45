"""Shared by all commands: options, output, the names of extras."""
