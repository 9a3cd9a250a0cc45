"""Encodes and decodes the bytes of entries and of ledger files."""
