"""Maintains topics: sealing, compaction, retention, relocation, removal."""
