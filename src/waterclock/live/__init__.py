"""Batches a topic live in one process, without Spark: by the same rules, and each message exactly once."""
