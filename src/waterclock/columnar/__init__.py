"""Many sources in columns: packed into bytes, kept in cells, and batched as streams. Independent of Spark."""
