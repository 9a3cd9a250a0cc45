"""Message tables and their groups."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import create_index, create_table
from waterclock.database.types import BigInt, Key, LongText, Name

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the catalogue of message tables."""
    create_table(
        "waterclock_message_tables",
        sa.Column("table_id", Key, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("options", LongText, nullable=False),
        sa.Column("revision", BigInt, nullable=False),
        sa.Column("paused_until", BigInt),
        sa.Column("time_created", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("table_id", name="waterclock_message_tables_pkey"),
        sa.UniqueConstraint("name", name="waterclock_message_tables_name_key"),
    )
    create_table(
        "waterclock_groups",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("group_id", Name, nullable=False),
        sa.Column("head", BigInt),
        sa.Column("tail", BigInt, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("ready_at", BigInt),
        sa.Column("owner", Name),
        sa.Column("token", BigInt),
        sa.PrimaryKeyConstraint("table_id", "group_id", name="waterclock_groups_pkey"),
    )
    create_index(
        "waterclock_groups_table_id_idx", "waterclock_groups", ["table_id", "priority", "ready_at", "group_id"]
    )
