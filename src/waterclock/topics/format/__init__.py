"""The bytes of entries and of ledger files."""
