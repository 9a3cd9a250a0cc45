"""What keeps a topic healthy and small: sealing, compaction, retention, verification, repair."""
