"""Stores have identities, ledgers have checksums, and what was deleted on purpose is told from what is missing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from waterclock.database.migration_steps import add_column, create_table
from waterclock.database.types import BigInt, Blob, Key, LongText, Name

revision = "0007"
down_revision = "0006"

_TOPICS = sa.table(
    "waterclock_topics", *map(sa.column, ("id", "ledger", "messages", "ordinal", "first_ledger", "first_ordinal"))
)
_LEDGERS = sa.table("waterclock_ledgers", *map(sa.column, ("topic_id", "ledger", "first_ordinal")))


def upgrade() -> None:
    """Add stores, checksums and limits; a topic begins with the oldest ledger that is left, so far as one can tell."""
    create_table(
        "waterclock_stores",
        sa.Column("id", Key, primary_key=True),
        sa.Column("identity", Name, nullable=False),
        sa.Column("root", LongText, nullable=False),
        sa.Column("is_complete", sa.SmallInteger, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.UniqueConstraint("identity", name="waterclock_stores_identity_key"),
        sqlite_autoincrement=True,
    )
    for column in (
        sa.Column("first_ledger", BigInt, nullable=False, server_default="0"),
        sa.Column("first_ordinal", BigInt, nullable=False, server_default="0"),
        sa.Column("store_id", BigInt),
        sa.Column("max_ahead", BigInt),
        sa.Column("on_ahead", sa.String(16)),
    ):
        add_column("waterclock_topics", column)
    add_column("waterclock_ledgers", sa.Column("checksums", Blob))
    add_column("waterclock_producers", sa.Column("covered", LongText))
    _note_where_topics_begin()


def _note_where_topics_begin() -> None:
    here = _LEDGERS.c.topic_id == _TOPICS.c.id
    oldest = {
        name: sa.select(sa.func.min(_LEDGERS.c[name])).where(here).scalar_subquery()
        for name in ("ledger", "first_ordinal")
    }
    values = {
        "first_ledger": sa.func.coalesce(oldest["ledger"], _TOPICS.c.ledger),
        "first_ordinal": sa.func.coalesce(oldest["first_ordinal"], _TOPICS.c.ordinal - _TOPICS.c.messages),
    }
    op.get_bind().execute(sa.update(_TOPICS).values(values))
