"""Deleting messages that were acked long enough ago."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.tables.context import TableContext

CHUNK = 1000
"""Rows deleted in one transaction, so that a purge never holds up the others for long."""


def purge_chunk(context: TableContext, connection: sa.Connection) -> int:
    """Delete up to `CHUNK` messages that were acked longer ago than ``purge_after``; return how many."""
    if context.options.purge_after is None:
        return 0
    rows = context.rows
    oldest = (
        sa.select(rows.c.seq)
        .where(
            rows.c.time_acked.is_not(None), rows.c.time_acked <= context.backend.now_sql() - context.options.purge_after
        )
        .order_by(rows.c.time_acked)
        .limit(CHUNK)
    )
    seqs = list(connection.scalars(oldest.with_for_update(skip_locked=True)))
    connection.execute(sa.delete(rows).where(context.sql.any_of(rows.c.seq, "seqs")), {"seqs": seqs})
    return len(seqs)
