"""Databases: one interface to three of them, and the catalogue of topics and message tables."""
