"""Migrations of the catalogue. Alembic runs the files of `versions`, whose steps may be repeated."""
