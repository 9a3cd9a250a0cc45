"""Upkeep of message tables: purge, archive, reconcile."""
