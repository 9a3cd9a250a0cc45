"""Spreads message tables over several databases."""
