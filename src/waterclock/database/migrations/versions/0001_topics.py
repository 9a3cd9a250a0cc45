"""Topics: counters, ledgers, entries, files, producers and subscriptions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from waterclock.database.migrations.steps import create_index, create_table
from waterclock.database.types import BigInt, Blob, Key, LongText, Name

revision = "0001"
down_revision = None

_TIMES = ("event_time", "publish_time", "receive_time")
_BOUNDED = (*_TIMES, "effective_time")


def _bounds() -> list[sa.Column[int]]:
    names = [f"begin_{time}" for time in _TIMES]
    names += [f"end_{time}" for time in _BOUNDED]
    names += [f"peak_{time}" for time in _BOUNDED]
    return [sa.Column(name, BigInt) for name in names]


def upgrade() -> None:
    """Create the tables of topics."""
    _create_topics()
    _create_ledgers()
    _create_entries()
    _create_files()
    _create_readers_and_writers()


def _create_topics() -> None:
    create_table(
        "waterclock_topics",
        sa.Column("id", Key, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("roll_after", BigInt),
        sa.Column("roll_size", BigInt, nullable=False),
        sa.Column("retention", BigInt),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("ledger", BigInt, nullable=False),
        sa.Column("entries", BigInt, nullable=False),
        sa.Column("messages", BigInt, nullable=False),
        sa.Column("bytes", BigInt, nullable=False),
        sa.Column("ordinal", BigInt, nullable=False),
        sa.Column("opened_at", BigInt),
        *_bounds(),
        sa.Column("expiring_owner", Name),
        sa.Column("expiring_until", BigInt),
        sa.PrimaryKeyConstraint("id", name="waterclock_topics_pkey"),
        sa.UniqueConstraint("name", name="waterclock_topics_name_key"),
        sqlite_autoincrement=True,
    )


def _create_ledgers() -> None:
    create_table(
        "waterclock_ledgers",
        sa.Column("topic_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("ledger", BigInt, nullable=False, autoincrement=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("entries", BigInt, nullable=False),
        sa.Column("messages", BigInt, nullable=False),
        sa.Column("bytes", BigInt, nullable=False),
        sa.Column("first_ordinal", BigInt, nullable=False),
        sa.Column("opened_at", BigInt),
        sa.Column("closed_at", BigInt, nullable=False),
        sa.Column("sealed_at", BigInt),
        *_bounds(),
        sa.Column("path", Name),
        sa.Column("file_bytes", BigInt),
        sa.Column("row_groups", LongText),
        sa.Column("footer", Blob),
        sa.PrimaryKeyConstraint("topic_id", "ledger", name="waterclock_ledgers_pkey"),
    )
    create_index("waterclock_ledgers_state_idx", "waterclock_ledgers", ["topic_id", "state", "ledger"])
    create_index("waterclock_ledgers_first_ordinal_idx", "waterclock_ledgers", ["topic_id", "first_ordinal"])
    for time in _BOUNDED:
        create_index(f"waterclock_ledgers_{time}_idx", "waterclock_ledgers", ["topic_id", f"peak_{time}", "ledger"])


def _create_entries() -> None:
    create_table(
        "waterclock_entries",
        sa.Column("topic_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("ledger", BigInt, nullable=False, autoincrement=False),
        sa.Column("entry", BigInt, nullable=False, autoincrement=False),
        sa.Column("first_ordinal", BigInt, nullable=False),
        sa.Column("messages", BigInt, nullable=False),
        sa.Column("bytes", BigInt, nullable=False),
        sa.Column("token", BigInt, nullable=False),
        *_bounds(),
        sa.Column("data", Blob, nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "ledger", "entry", name="waterclock_entries_pkey"),
    )
    for time in _BOUNDED:
        columns = ["topic_id", "ledger", f"peak_{time}", "entry"]
        create_index(f"waterclock_entries_{time}_idx", "waterclock_entries", columns)
    if op.get_context().dialect.name == "postgresql":
        # The data is compressed already; trying again makes an append three times as slow.
        op.execute("ALTER TABLE waterclock_entries ALTER COLUMN data SET STORAGE EXTERNAL")


def _create_files() -> None:
    create_table(
        "waterclock_files",
        sa.Column("path", Name, nullable=False),
        sa.Column("topic_id", BigInt, nullable=False),
        sa.Column("ledger", BigInt, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", Name, nullable=False),
        sa.Column("until", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("path", name="waterclock_files_pkey"),
    )
    create_index("waterclock_files_ledger_idx", "waterclock_files", ["topic_id", "ledger"])
    create_index("waterclock_files_until_idx", "waterclock_files", ["topic_id", "until"])


def _create_readers_and_writers() -> None:
    create_table(
        "waterclock_producers",
        sa.Column("topic_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.Column("last_sequence", BigInt),
        sa.Column("recent", LongText, nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "name", name="waterclock_producers_pkey"),
    )
    create_table(
        "waterclock_subscriptions",
        sa.Column("topic_id", BigInt, nullable=False, autoincrement=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("ledger", BigInt, nullable=False),
        sa.Column("entry", BigInt, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("ordinal", BigInt, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.Column("not_before", BigInt),
        sa.Column("holder", Name),
        sa.Column("held_until", BigInt),
        sa.PrimaryKeyConstraint("topic_id", "name", name="waterclock_subscriptions_pkey"),
    )
