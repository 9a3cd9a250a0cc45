"""Batching rules, pure: no I/O, no clock, no logging. Callers pass the time."""
