"""Reads the exported figures of message tables. Each statement reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.table_catalogue import heartbeats, message_tables, totals
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import load
from waterclock.tables.messages.inspecting.estimating import (
    GroupsEstimate,
    TableEstimate,
    estimate_groups,
    estimate_messages,
    rate_of_acks,
)
from waterclock.tables.messages.rows.process_heartbeat import LASTS, RATE_SECONDS

# Built once: building a statement takes longer than running it.
_TABLES = (
    sa.select(*(message_tables.c[name] for name in ("table_id", "name", "revision", "paused_until")), totals.c.purged)
    .outerjoin(totals, totals.c.table_id == message_tables.c.table_id)
    .order_by(message_tables.c.table_id)
)
_ACTIVE = (
    sa.select(
        heartbeats.c.table_id,
        *(sa.func.sum(heartbeats.c[name]).label(name) for name in ("subscribers", "failing", "stuck", "sent")),
    )
    .where(heartbeats.c.beat_at > sa.bindparam("since", type_=sa.BigInteger))
    .group_by(heartbeats.c.table_id)
)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The catalogue's record of a table."""

    # Its row.
    table_id: int
    name: str
    revision: int
    is_paused: bool  # whether no message is sent now
    purged: int  # messages purged so far
    # Open subscriptions in all processes, and those whose claims fail.
    subscribers: int
    failing: int
    stuck: int  # handlers that still run after their time limit
    sent_rate: float  # deliveries per second in the last minute


@dataclass(frozen=True, slots=True)
class TableCounts:
    """The counts of a table's rows."""

    # Unacked messages, and blocked groups.
    messages: TableEstimate
    groups: GroupsEstimate
    ack_rate: float  # acks per second
    dead_letter: str | None  # its dead-letter table, which holds no other table's messages; None: it has none


def table_records(backend: Backend, connection: sa.Connection) -> list[TableRecord]:
    """Read the catalogue's records of all tables, the oldest table first."""
    now = backend.now(connection)
    known = connection.execute(_TABLES).all()
    active = {row.table_id: row for row in connection.execute(_ACTIVE, {"since": now - LASTS})}

    def record(row: sa.Row[*tuple[object, ...]]) -> TableRecord:
        beat = active.get(row.table_id)
        return TableRecord(
            row.table_id,
            row.name,
            row.revision,
            is_paused=row.paused_until is not None and row.paused_until > now,
            purged=int(row.purged or 0),
            subscribers=0 if beat is None else int(beat.subscribers),
            failing=0 if beat is None else int(beat.failing),
            stuck=0 if beat is None else int(beat.stuck),
            sent_rate=0.0 if beat is None else int(beat.sent) / RATE_SECONDS,
        )

    return [record(row) for row in known]


class TableCounter:
    """Counts the rows of tables. Keeps the columns of each table until the table changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[int, TableContext] = {}

    def keep_only(self, records: Sequence[TableRecord]) -> None:
        """Forget tables that were dropped."""
        there = {one.table_id for one in records}
        self._known = {table_id: context for table_id, context in self._known.items() if table_id in there}

    def count(self, record: TableRecord, connection: sa.Connection, now: int) -> TableCounts:
        """Count a table's rows at a time, ns. After an error, the connection's transaction is unusable.

        Raises `Exception` if the table cannot be read.
        """
        context = self._known.pop(record.table_id, None)
        if context is None or context.revision != record.revision:
            context = load(self._backend, record.name)
        counts = TableCounts(
            estimate_messages(context, connection, now),
            estimate_groups(context, connection),
            rate_of_acks(context, connection, now),
            context.options.dead_letter,
        )
        self._known[record.table_id] = context  # only after an error: its columns may have changed
        return counts


def failing_claims(backend: Backend) -> Iterator[str]:
    """Yield for each table the reason why claims of some process fail."""
    with backend.snapshot() as connection:
        since = backend.now(connection) - LASTS
        statement = (
            sa.select(message_tables.c.name, sa.func.max(heartbeats.c.failure))
            .join(message_tables, message_tables.c.table_id == heartbeats.c.table_id)
            .where(heartbeats.c.failing > 0, heartbeats.c.beat_at > since)
            .group_by(message_tables.c.name)
        )
        for name, failure in connection.execute(statement).all():
            yield f"claims from table {name!r} fail: {failure}"
