"""Storing what was received: messages, dead letters and the evidence of both, in one transaction."""
