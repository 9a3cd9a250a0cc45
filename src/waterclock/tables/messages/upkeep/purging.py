"""Deletes messages that were acked or dropped long enough ago, row by row or by dropping partitions of past days."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock.errors import RefusedError, UnavailableError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.messages.rows.refused_rows import pass_by_refused
from waterclock.tables.model.claims.epochs import times_sent
from waterclock.tables.model.days import Days, Gone, days_to_add, days_to_drop

_T = TypeVar("_T")
_Delete = Callable[[sa.Connection, Sequence[int]], int]

_log = logging.getLogger(__name__)

_PIECES = 10  # maximum chunks examined in one call if all their rows are refused
_CHUNK = 1000  # rows deleted in one transaction, so that a purge never blocks others for long


def purge_some(context: TableContext) -> int:
    """Delete up to a thousand messages that were acked longer ago than ``purge_after``; return how many.

    Messages that the database refuses to delete stay, and the next call continues behind them. Raises `RefusedError` or
    `InvalidArgumentError` if the database refuses all messages that this call examined.
    """
    if context.options.purge_by == "partition" and context.sql.days is not None:
        return _purge_days(context, context.sql.days)
    if context.options.purge_after is None:
        return 0
    return _purge_rows(context, _oldest(context), lambda own, part: _delete(context, own, part))


def _purge_rows(context: TableContext, oldest: sa.Select[Any, Any, Any], delete: _Delete) -> int:
    """Delete the first selected messages, skipping those that the database refuses to delete; return how many."""
    refused: WaterclockError | None = None
    for _ in range(_PIECES):
        purged, refused, more = _purge_piece(context, oldest, delete)
        if purged or not more:
            return purged
    if refused is None:
        return 0
    raise refused


def _purge_piece(
    context: TableContext, oldest: sa.Select[Any, Any, Any], delete: _Delete
) -> tuple[int, WaterclockError | None, bool]:
    """Delete the next messages; return how many, why others were refused, and whether to continue behind them."""
    place = context.purge_place
    time_acked = oldest.selected_columns.time_acked
    if place.after is not None:
        oldest = oldest.where(time_acked > place.after)
    with context.backend.snapshot() as connection:
        # On SQLite, do not take the write lock if there is nothing to delete.
        found = connection.execute(oldest.order_by(time_acked).limit(_CHUNK)).all()
    if not found:
        place.after = None
        return 0, None, False
    seqs = [row.seq for row in found]
    purged, refused, *_ = pass_by_refused(seqs, lambda part: context.backend.transact(lambda own: delete(own, part)))
    if refused is None:
        return purged, None, False
    place.after = found[-1].time_acked
    if place.tells("acked"):
        _log.warning("cannot purge some messages of table %r: %s", context.name, refused)
    return purged, refused, True


def _delete(context: TableContext, connection: sa.Connection, seqs: Sequence[int]) -> int:
    rows = context.rows
    these = context.sql.any_of(rows.c.seq, "seqs")
    locking = _oldest(context).where(these).order_by(rows.c.time_acked).with_for_update(skip_locked=True)
    found = connection.execute(locking, {"seqs": list(seqs)}).all()
    connection.execute(sa.delete(rows).where(these), {"seqs": [row.seq for row in found]})
    add_totals(connection, context.table_id, purged=len(found), sent=times_sent(row.epoch for row in found))
    return len(found)


def _oldest(context: TableContext) -> sa.Select[Any, Any, Any]:
    rows = context.rows
    before = context.backend.now_sql() - (context.options.purge_after or 0)
    return sa.select(rows.c.seq, rows.c.epoch, rows.c.time_acked).where(
        rows.c.time_acked.is_not(None), rows.c.time_acked <= before
    )


def _purge_days(context: TableContext, days: Days) -> int:
    """Add and drop partitions of a table; return how many messages were deleted.

    If others have locked the table it changes nothing: acks do not depend on it, and the next call tries again.
    """
    backend, name = context.backend, context.name
    with backend.snapshot() as connection:
        known = days.known(connection, name)
        now = backend.now(connection)
    purged = 0
    try:
        with backend.patience(0):
            if missing := days_to_add(known, now):
                _change(context, days, lambda own: days.add(own, name, missing), missing, present=True)
            for day in days_to_drop(known, now, context.options.purge_after):
                gone = _change(context, days, _dropping(context, days, day), [day], present=False)
                purged += gone.messages if gone else 0
    except UnavailableError as error:
        _log.info("cannot purge partitions of table %r now: %s", name, error)
    if context.options.purge_after is not None:
        purged += purge_undated(context, days, now - context.options.purge_after)
    return purged


def _dropping(context: TableContext, days: Days, day: int) -> Callable[[sa.Connection], Gone]:
    def drop_and_count(connection: sa.Connection) -> Gone:
        gone = days.drop_day(connection, context.name, day)
        add_totals(connection, context.table_id, purged=gone.messages, sent=gone.sent)
        return gone

    return drop_and_count


def _change(
    context: TableContext, days: Days, work: Callable[[sa.Connection], _T], concerned: Collection[int], *, present: bool
) -> _T | None:
    """Add or drop days; return None if another process was faster."""
    try:
        return context.backend.transact(work)
    except RefusedError:
        with context.backend.snapshot() as connection:
            known = set(days.known(connection, context.name))
        if all((day in known) == present for day in concerned):
            return None
        raise


def purge_undated(context: TableContext, days: Days, before: int) -> int:
    """Delete up to a thousand messages acked until ``before`` that are in no day's partition; return how many."""
    undated = days.undated(context.rows).subquery()
    rows = context.rows
    these = context.sql.any_of(rows.c.seq, "seqs") & (rows.c.time_acked <= before)

    def delete(connection: sa.Connection, seqs: Sequence[int]) -> int:
        locking = sa.select(rows.c.seq, rows.c.epoch).where(these).with_for_update(skip_locked=True)
        found = connection.execute(locking, {"seqs": list(seqs)}).all()
        connection.execute(sa.delete(rows).where(these), {"seqs": [row.seq for row in found]})
        add_totals(connection, context.table_id, purged=len(found), sent=times_sent(row.epoch for row in found))
        return len(found)

    return _purge_rows(context, sa.select(undated).where(undated.c.time_acked <= before), delete)
