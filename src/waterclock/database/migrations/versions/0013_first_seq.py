"""The column by which groups that are due together go says what it holds: the seq of a group's first message."""

from __future__ import annotations

from waterclock.database.migrations.steps import rename_column

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Rename it; the index that ends with it follows on every database."""
    rename_column("waterclock_groups", "came", "first_seq")
