"""Maintenance of a topic: sealing, compaction, retention, verification, repair."""
