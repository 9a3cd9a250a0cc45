"""Packs the messages of many sources into columns, stores them in binary cells, and batches them as streams.

This package does not need Spark.
"""
