"""Totals of message tables: what was purged and sent, and the state of their rate limits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from waterclock.database.migrations.steps import create_table
from waterclock.database.types import BigInt

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the totals, with a row for each message table that is there."""
    create_table(
        "waterclock_table_totals",
        sa.Column("table_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("purged", BigInt, nullable=False),
        sa.Column("sent", BigInt, nullable=False),
        sa.Column("rate_next", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("table_id", name="waterclock_table_totals_pkey"),
    )
    counted = ("purged", "sent", "rate_next")
    totals = sa.table("waterclock_table_totals", *(sa.column(name, BigInt) for name in ("table_id", *counted)))
    known = sa.table("waterclock_message_tables", sa.column("table_id", BigInt))
    fresh = sa.select(known.c.table_id, *(sa.literal_column("0") for _ in counted)).where(
        known.c.table_id.not_in(sa.select(totals.c.table_id))
    )
    op.execute(sa.insert(totals).from_select(["table_id", *counted], fresh))
