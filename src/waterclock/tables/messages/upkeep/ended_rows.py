"""Deletes the rows of groups and keys that ended, on databases that keep such rows for a while (`keeps_ended`)."""

from __future__ import annotations

import logging
from collections.abc import Collection

import sqlalchemy as sa

from waterclock._support.quoting import in_a_line, said_of
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups, message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import RefusedError, UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import needless, these_groups
from waterclock.tables.keys.turn_tiers import has_ended
from waterclock.tables.model.timing.sweeps import ENDED_FOR

_AT_ONCE = 1000

_log = logging.getLogger(__name__)


def delete_ended(context: TableContext) -> None:
    """Delete some of the rows, if the last deletion is old enough."""
    if not context.ended_rows.is_due:
        return
    saved = context.reached.saved
    start, upto = context.ended_rows.begin(context.backend.now_about(), saved.ended_until)
    values = {"start": start, "upto": upto}

    def delete(connection: SqlConnection) -> tuple[int, int | None]:
        deleted = len(connection.execute(_deleting(context), values).all())
        return deleted, connection.execute(_first_left(context), values).scalar()

    try:
        deleted, first_left = context.backend.alone(delete, durable=False)
    except (RefusedError, UnavailableError) as error:
        _log.info(
            "cannot delete the rows of ended groups and keys of table %r: %s", context.name, in_a_line(said_of(error))
        )
        return
    saved.ended_until = upto if first_left is None else first_left
    context.ended_rows.end(more=deleted == _AT_ONCE)


def is_left_over(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that `delete_ended` has passed over the row of a group that has ended."""
    return sa.and_(groups.c.ended_at < context.backend.now_sql() - 2 * ENDED_FOR, *_is_empty_and_needless())


def delete_left_over(context: TableContext, connection: SqlConnection, names: Collection[str]) -> None:
    """Delete such rows among those of these groups, which the transaction has locked."""
    connection.execute(_deleting_left_over(context), {"groups": list(names)})


def _is_empty_and_needless() -> tuple[sa.ColumnElement[bool], ...]:
    # Plain SQL may set ``ended_at`` of a group with messages.
    return groups.c.head.is_(None), *needless()


@built_once(maxsize=256)
def _deleting(context: TableContext) -> sa.Executable:
    rows, at, which = _ended(context)
    place = sa.literal_column(f"{rows.name}.ctid")
    ended = sa.select(place).select_from(rows).where(*which).order_by(at)
    ended = ended.limit(_AT_ONCE).with_for_update(skip_locked=True).correlate(None)
    # By places, because a planner that believes the catalogue empty would scan all rows for a join.
    places = sa.func.array(ended.scalar_subquery())
    return sa.delete(rows).where(place == sa.any_(places)).returning(at)


@built_once(maxsize=256)
def _first_left(context: TableContext) -> sa.Select[int]:
    """Return when the first of the rows ended that `_deleting` has not deleted: it was locked, or there are more."""
    _, at, which = _ended(context)
    return sa.select(at).where(*which).order_by(at).limit(1)


def _ended(context: TableContext) -> tuple[sa.Table, sa.Column[int], tuple[sa.ColumnElement[bool], ...]]:
    """Return the table of the rows, the column of their end, and the condition of those to delete."""
    start, upto = (sa.bindparam(name, type_=sa.BigInteger) for name in ("start", "upto"))
    is_keyed = context.options.turns_by is not None
    rows, at = (message_keys, message_keys.c.due_at) if is_keyed else (groups, groups.c.ended_at)
    its = (has_ended(context),) if is_keyed else (groups.c.table_id == context.table_id, *_is_empty_and_needless())
    return rows, at, (*its, at >= start, at <= upto)


@built_once(maxsize=256)
def _deleting_left_over(context: TableContext) -> sa.Delete:
    return sa.delete(groups).where(these_groups(context), is_left_over(context))
