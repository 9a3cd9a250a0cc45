"""Stores received messages, dead letters, and the data by which repeats are recognized, in one transaction."""
