"""Many sources in columns: packed into bytes, stored in cells, and batched as streams. Independent of Spark."""
