"""Stores the files of sealed ledgers on any filesystem."""
