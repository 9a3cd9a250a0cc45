"""Schedules: messages that are put again and again."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import create_table
from waterclock.database.types import BigInt, LongText, Name

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Create their table."""
    create_table(
        "waterclock_schedules",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("cron", LongText, nullable=False),
        sa.Column("timezone", Name, nullable=False),
        sa.Column("message", LongText, nullable=False),
        sa.Column("catch_up", Name, nullable=False),
        sa.Column("within", BigInt),
        sa.Column("overlap", Name, nullable=False),
        sa.Column("paused", sa.SmallInteger, nullable=False),
        sa.Column("seen_until", BigInt, nullable=False),
        sa.Column("last_tick", BigInt),
        sa.Column("next_tick", BigInt),
        sa.Column("last_id", Name),
        sa.PrimaryKeyConstraint("table_id", "name", name="waterclock_schedules_pkey"),
    )
