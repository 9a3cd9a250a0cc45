"""Batching rules, pure: no I/O, no clock, no logging. Callers say what time it is."""
