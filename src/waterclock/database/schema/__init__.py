"""The tables of the catalogue, named waterclock_*."""
