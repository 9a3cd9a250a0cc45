"""The main job: a recording of real traffic through the whole flow, reconciled to the message and drawn."""
