"""Upkeep: what ran when, for which topic or message table. Heartbeats say whether claims fail."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import add_column, create_table
from waterclock.database.types import BigInt, LongText, Name

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Create its table, and add the columns."""
    create_table(
        "waterclock_upkeep",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("task", sa.String(16), nullable=False),
        sa.Column("owner", Name),
        sa.Column("lease_until", BigInt),
        sa.Column("ran_at", BigInt),
        sa.Column("took", BigInt),
        sa.Column("did", BigInt),
        sa.Column("error", LongText),
        sa.PrimaryKeyConstraint("kind", "name", "task", name="waterclock_upkeep_pkey"),
    )
    add_column("waterclock_heartbeats", sa.Column("failing", BigInt, nullable=False, server_default="0"))
    add_column("waterclock_heartbeats", sa.Column("failure", LongText))
