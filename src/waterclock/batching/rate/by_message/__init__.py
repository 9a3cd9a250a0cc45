"""Batches single messages by rate: the class `RateAwareBatcher` and its state."""
