"""Stores have identities, ledgers have checksums, and what was deleted on purpose is not what is missing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from waterclock.database.migrations.steps import add_column, create_index, create_table
from waterclock.database.types import BigInt, Blob, Key, LongText, Name

revision = "0007"
down_revision = "0006"

_TOPICS = sa.table(
    "waterclock_topics",
    *map(sa.column, ("id", "ledger", "messages", "ordinal", "first_ledger", "first_ordinal", "stored_bytes")),
)
_LEDGERS = sa.table(
    "waterclock_ledgers",
    *map(
        sa.column,
        ("topic_id", "ledger", "first_ordinal", "state", "bytes", "file_bytes", "row_groups", "footer"),
    ),
)


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
        sa.Column("origin", Name),
        sa.Column("max_ahead", BigInt),
        sa.Column("on_ahead", sa.String(16)),
        sa.Column("stored_bytes", BigInt, nullable=False, server_default="0"),
        sa.Column("stale_peaks", BigInt),
    ):
        add_column("waterclock_topics", column)
    add_column("waterclock_ledgers", sa.Column("shared_footer", Blob))
    add_column("waterclock_ledgers", sa.Column("lost_in_file", BigInt, nullable=False, server_default="0"))
    add_column("waterclock_ledgers", sa.Column("imported", BigInt, nullable=False, server_default="0"))
    add_column("waterclock_ledgers", sa.Column("checksums", Blob))
    add_column("waterclock_producers", sa.Column("covered", LongText))
    add_column("waterclock_subscriptions", sa.Column("not_before_by", sa.String(16)))
    for time in ("event_time", "publish_time", "receive_time"):
        create_index(f"waterclock_ledgers_begin_{time}_idx", "waterclock_ledgers", ["topic_id", f"begin_{time}"])
    _note_where_topics_begin()
    _add_up_sizes()


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


def _add_up_sizes() -> None:
    # Of a sealed ledger, bytes were those of its entries, unless it shared its file: then it had no footer of its own.
    in_its_own_file = sa.or_(_LEDGERS.c.footer.is_not(None), _LEDGERS.c.row_groups.is_(None))
    sealed = sa.update(_LEDGERS).where(_LEDGERS.c.state == "sealed", in_its_own_file)
    op.get_bind().execute(sealed.values(bytes=_LEDGERS.c.file_bytes))
    total = sa.select(sa.func.sum(_LEDGERS.c.bytes)).where(_LEDGERS.c.topic_id == _TOPICS.c.id).scalar_subquery()
    op.get_bind().execute(sa.update(_TOPICS).values(stored_bytes=sa.func.coalesce(total, 0)))
