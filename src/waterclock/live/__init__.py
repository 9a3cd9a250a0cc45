"""Batches a topic live in one process, without Spark: the same rules, the same batches, exactly once."""
