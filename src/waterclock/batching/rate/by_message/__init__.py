"""Batching by rate, message by message: the class and its state."""
