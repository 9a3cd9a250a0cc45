"""Which processes take messages from a message table, and how many."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.migrations.steps import create_table
from waterclock.database.types import BigInt

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the attendance."""
    create_table(
        "waterclock_attendance",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("session", BigInt, nullable=False, autoincrement=False),
        sa.Column("subscribers", BigInt, nullable=False),
        sa.Column("sent", BigInt, nullable=False),
        sa.Column("told_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("table_id", "session", name="waterclock_attendance_pkey"),
    )
