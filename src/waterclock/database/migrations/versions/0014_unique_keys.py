"""The keys of messages of which only one waits at a time."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import create_index, create_table
from waterclock.database.types import BigInt, Name

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Create their table."""
    create_table(
        "waterclock_unique_keys",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("unique_key", Name, nullable=False),
        sa.Column("message_id", Name),
        sa.Column("until_done", sa.SmallInteger, nullable=False),
        sa.Column("used_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("table_id", "unique_key", name="waterclock_unique_keys_pkey"),
    )
    # Not by table first: without statistics PostgreSQL takes the table for a key, and would go through all its keys.
    create_index("waterclock_unique_keys_used_idx", "waterclock_unique_keys", ["used_at", "table_id"])
