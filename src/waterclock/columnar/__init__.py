"""Packs the messages of many sources into columns and binary cells, and batches them piece by piece.

This package does not need Spark.
"""
