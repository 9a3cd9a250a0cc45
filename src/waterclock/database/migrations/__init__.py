"""The migrations of the catalogue. Alembic runs the files in `versions`; each of their steps can be repeated."""
