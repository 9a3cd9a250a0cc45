"""Batching by the streams' own rates."""
