"""Reads and deletes finished rows of a message table, so that an archive can store them elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.messages.putting.putting import check_id
from waterclock.tables.model.claims.epochs import times_sent
from waterclock.tables.model.row_conditions import EXPIRED
from waterclock.tables.model.schema import user_column_names


def acked_rows(
    context: TableContext, before: int, after: tuple[int, int] | None, limit: int
) -> Sequence[sa.Row[tuple[Any, ...]]]:
    """Return messages acked at or before a time, in the order of their acks; no expired ones.

    ``before`` is in ns. ``after`` is the ``time_acked`` and the ``seq`` of the last row that was read; None: start at
    the first.
    """
    rows = context.rows
    handled = sa.func.coalesce(rows.c.acked_by, -1) != EXPIRED
    statement = sa.select(rows).where(rows.c.time_acked <= before, handled).order_by(rows.c.time_acked, rows.c.seq)
    statement = statement.limit(limit)
    if after is not None:
        acked, seq = after
        later = sa.or_(rows.c.time_acked > acked, sa.and_(rows.c.time_acked == acked, rows.c.seq > seq))
        statement = statement.where(rows.c.time_acked >= acked, later)
    with context.backend.snapshot() as connection:
        return connection.execute(statement).all()


def delete_acked(context: TableContext, acked: Mapping[Any, int]) -> int:
    """Delete messages by id and time of their ack; return how many still existed.

    A message that was sent again since then stays, because it has another ack.
    """
    rows = context.rows
    these = context.sql.any_of(rows.c.id, "ids") & rows.c.time_acked.is_not(None)
    wanted = {check_id(context, given): at for given, at in acked.items()}

    def delete_unchanged(connection: sa.Connection) -> int:
        statement = sa.select(rows.c.id, rows.c.time_acked, rows.c.epoch).where(these).with_for_update()
        found = [
            row for row in connection.execute(statement, {"ids": list(wanted)}) if wanted[row.id] == row.time_acked
        ]
        connection.execute(sa.delete(rows).where(these), {"ids": [row.id for row in found]})
        add_totals(connection, context.table_id, purged=len(found), sent=times_sent(row.epoch for row in found))
        return len(found)

    return context.backend.transact(delete_unchanged)


def further_columns(context: TableContext) -> tuple[str, ...]:
    """Return the names of the columns that the user added."""
    return user_column_names(context.rows)
