"""Batches a topic live in one process, by the same rules as on Spark. Puts each batch exactly once."""
