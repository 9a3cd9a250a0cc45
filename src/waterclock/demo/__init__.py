"""The demo: real recorded traffic passes through every stage, and each message is accounted for and drawn."""
