"""The main job: a recording of real traffic goes through the whole flow, is reconciled to the message, and is drawn."""
