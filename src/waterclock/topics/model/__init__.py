"""The pure rules of a topic: bounds, counters, producers' numbers, names, options."""
