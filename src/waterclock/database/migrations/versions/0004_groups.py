"""Groups that stay with one consumer, or wait for one; consumers that live."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import add_column, create_index, create_table, drop_column, drop_index
from waterclock.database.types import BigInt, Name

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add what groups need, and the catalogue of consumers."""
    drop_index("waterclock_groups_table_id_idx", "waterclock_groups")
    drop_column("waterclock_groups", "owner")
    drop_column("waterclock_groups", "token")
    for column in (
        sa.Column("next_position", BigInt),
        sa.Column("assigned", Name, nullable=False, server_default=""),
        sa.Column("drain_to", Name),
        sa.Column("pinned", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("paused_until", BigInt),
        sa.Column("idle_since", BigInt),
    ):
        add_column("waterclock_groups", column)
    create_index(
        "waterclock_groups_ready_idx", "waterclock_groups", ["assigned", "table_id", "priority", "ready_at", "group_id"]
    )
    create_index("waterclock_groups_idle_idx", "waterclock_groups", ["idle_since", "table_id"])
    create_table(
        "waterclock_consumers",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("session", BigInt, nullable=False),
        sa.Column("lease_until", BigInt, nullable=False),
        sa.Column("max_groups", BigInt),
        sa.PrimaryKeyConstraint("table_id", "name", name="waterclock_consumers_pkey"),
    )
    create_index("waterclock_consumers_lease_idx", "waterclock_consumers", ["table_id", "lease_until"])
