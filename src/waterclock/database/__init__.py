"""Databases: one way to three of them, and the catalogue that topics and message tables keep there."""
