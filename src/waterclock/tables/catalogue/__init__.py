"""A message table in the catalogue: created, adopted, opened, altered, and its context for every operation."""
