"""A message table as the catalogue knows it: made, adopted, opened, altered, and its context for every operation."""
