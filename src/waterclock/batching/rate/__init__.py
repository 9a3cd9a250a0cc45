"""Batches by the rates of the streams."""
