"""Reads a topic: by position, by time, by range, and as slices for other processes."""
