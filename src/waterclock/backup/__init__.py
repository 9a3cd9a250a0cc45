"""Backups of SQLite databases with their ledger files: made while others write, checked, and restored."""
