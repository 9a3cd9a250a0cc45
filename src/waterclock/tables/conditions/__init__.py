"""Conditions in SQL's words, read and bound safely."""
