"""Runs batching in Spark's stateful operators."""
