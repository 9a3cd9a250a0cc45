"""Stores received messages, dead letters, and the evidence by which repeats are recognized, in one transaction."""
