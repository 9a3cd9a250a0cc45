"""Message tables in the catalogue: how they are created, adopted, opened and altered."""
