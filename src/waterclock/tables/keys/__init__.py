"""Keys of messages, such as customers. Keys take turns, and may have limits."""
