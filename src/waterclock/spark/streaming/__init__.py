"""Batching as an operator of Spark, with its state."""
