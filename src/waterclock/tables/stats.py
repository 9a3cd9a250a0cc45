"""Counting a message table's messages by what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from waterclock.tables.context import TableContext


@dataclass(frozen=True, slots=True)
class TableStats:
    """How many messages a table has. Every message counts once.

    Attributes
    ----------
    ready
        Due, and with nobody. In a group they may have to wait for those before them.
    scheduled
        Never sent, and due later.
    in_flight
        With a consumer whose lease lasts.
    delayed
        Sent before, given back, and due later.
    acked
        Handled, and not purged yet.
    oldest_age
        For how long the message has been due that was scheduled earliest and is not acked, ns; None where none is due.
    """

    ready: int
    scheduled: int
    in_flight: int
    delayed: int
    acked: int
    oldest_age: int | None


def table_stats(context: TableContext, connection: sa.Connection) -> TableStats:
    """Count the messages as they are in the connection's snapshot."""
    rows = context.rows
    now = context.backend.now(connection)
    due = sa.func.coalesce(rows.c.time_next, rows.c.time_scheduled, 0) <= now
    out = ~due & rows.c.lease.is_not(None)
    later = ~due & rows.c.lease.is_(None)
    waiting = connection.execute(
        sa.select(
            _count(due),
            _count(later & (rows.c.epoch == 0)),
            _count(out),
            _count(later & (rows.c.epoch > 0)),
            sa.func.min(rows.c.time_scheduled),
        ).where(rows.c.time_acked.is_(None))
    ).one()
    acked = connection.execute(
        sa.select(sa.func.count()).select_from(rows).where(rows.c.time_acked.is_not(None))
    ).scalar_one()
    ready, scheduled, in_flight, delayed, earliest = waiting
    oldest_age = now - earliest if earliest is not None and earliest <= now else None
    return TableStats(ready, scheduled, in_flight, delayed, acked, oldest_age)


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
