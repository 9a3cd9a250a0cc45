"""Databases: one interface to all three, and the catalogue of topics and message tables."""
