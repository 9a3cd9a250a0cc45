"""The rows of a topic in Waterclock's own tables (the catalogue): the topic, its ledgers, its totals and its stores."""
