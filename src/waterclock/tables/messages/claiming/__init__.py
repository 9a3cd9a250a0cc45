"""Claims of messages for a consumer, with and without groups."""
