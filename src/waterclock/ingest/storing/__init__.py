"""Stores received messages: mapped ones, dead letters and the evidence of both, in one transaction."""
