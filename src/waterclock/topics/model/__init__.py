"""Pure rules of a topic: bounds, counters, producers' sequence numbers, names, options."""
