"""The catalogue's rows of a topic: the topic, its ledgers, its totals and its stores."""
