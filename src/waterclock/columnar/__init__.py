"""Messages of many sources as columns, which are packed into bytes, stored in cells and batched as streams.

Nothing here needs Spark.
"""
