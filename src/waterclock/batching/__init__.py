"""The rules of batching. They are pure: they use no I/O, no clock and no logging, and callers pass the time."""
