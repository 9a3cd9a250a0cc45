"""Appends messages: one entry per append, group commit, producers."""
