"""Workers: run handlers on the messages of message tables."""
