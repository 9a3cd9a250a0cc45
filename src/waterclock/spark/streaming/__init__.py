"""Batches in Spark's stateful operators."""
