"""Groups that are due together go in the order in which they came, no longer by name."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migration_steps import add_column, create_index, drop_index
from waterclock.database.types import BigInt

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add when a group came, and put it into the index in which claims look. Groups that are there come first."""
    add_column("waterclock_groups", sa.Column("came", BigInt, nullable=False, server_default="0"))
    drop_index("waterclock_groups_ready_idx", "waterclock_groups")
    create_index(
        "waterclock_groups_ready_idx", "waterclock_groups", ["assigned", "table_id", "priority", "ready_at", "came"]
    )
