"""Keys of messages, such as customers: they take turns, or have limits."""
