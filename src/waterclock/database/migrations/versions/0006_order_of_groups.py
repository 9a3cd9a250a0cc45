"""Groups that are due together go in the order in which they came; indexes hold only the groups they are for."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import add_column, create_index, drop_index
from waterclock.database.types import BigInt

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add when a group came, and put it into the index in which claims look. Groups that are there come first.

    Indexes hold only the groups that they are for, so that PostgreSQL, which takes a table that it saw empty for empty,
    does not look up one group by its table in any of them, and go through all groups.
    """
    add_column("waterclock_groups", sa.Column("came", BigInt, nullable=False, server_default="0"))
    drop_index("waterclock_groups_ready_idx", "waterclock_groups")
    drop_index("waterclock_groups_idle_idx", "waterclock_groups")
    for name, columns, where in (
        ("due", ["assigned", "table_id", "priority", "ready_at", "came"], "ready_at IS NOT NULL"),
        ("assigned", ["assigned", "table_id", "group_id"], "assigned <> ''"),
        ("unused", ["idle_since", "table_id"], "idle_since IS NOT NULL"),
    ):
        create_index(f"waterclock_groups_{name}_idx", "waterclock_groups", columns, where)
