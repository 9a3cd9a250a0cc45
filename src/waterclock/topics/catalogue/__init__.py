"""The rows of the catalogue: a topic, its ledgers, its totals, its stores."""
