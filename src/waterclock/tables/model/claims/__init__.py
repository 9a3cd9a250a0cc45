"""What a claim asks for and takes, and what it passes by."""
