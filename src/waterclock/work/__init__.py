"""Workers, which run handlers on the messages of message tables."""
