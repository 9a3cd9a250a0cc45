"""The files of sealed ledgers on any filesystem."""
