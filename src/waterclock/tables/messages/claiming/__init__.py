"""Claims messages for a consumer, from tables with and without groups."""
