"""The demo: a recording of real traffic goes through every stage, and each message is accounted for and drawn."""
