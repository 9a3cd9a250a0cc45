"""Appends messages, with group commit and producers. Each append is one entry."""
