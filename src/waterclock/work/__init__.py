"""Workers: what runs handlers on the messages of message tables."""
