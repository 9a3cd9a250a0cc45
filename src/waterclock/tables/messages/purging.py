"""Deleting messages that were acked long enough ago."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.messages.purging_days import purge_days

_CHUNK = 1000  # rows deleted in one transaction, so that a purge never holds up the others for long


def purge_some(context: TableContext) -> int:
    """Delete messages that were acked longer ago than ``purge_after``, some thousand at the most; return how many."""
    if context.options.purge_by == "partition" and context.sql.days is not None:
        return purge_days(context, context.sql.days)
    if context.options.purge_after is None:
        return 0
    with context.backend.snapshot() as connection:
        # Where writers take turns, there is no need for one if there is nothing to delete.
        if connection.execute(_oldest(context).limit(1)).first() is None:
            return 0
    return context.backend.transact(lambda connection: _purge_chunk(context, connection))


def _purge_chunk(context: TableContext, connection: sa.Connection) -> int:
    rows = context.rows
    oldest = _oldest(context).limit(_CHUNK).with_for_update(skip_locked=True)
    found = connection.execute(oldest).all()
    seqs = [row.seq for row in found]
    connection.execute(sa.delete(rows).where(context.sql.any_of(rows.c.seq, "seqs")), {"seqs": seqs})
    add_totals(connection, context.table_id, purged=len(found), sent=sum(row.epoch or 0 for row in found))
    return len(found)


def _oldest(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    before = context.backend.now_sql() - (context.options.purge_after or 0)
    return (
        sa.select(rows.c.seq, rows.c.epoch)
        .where(rows.c.time_acked.is_not(None), rows.c.time_acked <= before)
        .order_by(rows.c.time_acked)
    )
