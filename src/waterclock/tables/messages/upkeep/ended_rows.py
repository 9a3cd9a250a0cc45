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
from waterclock.tables.keys.turn_levels import has_ended
from waterclock.tables.model.timing.sweeps import ENDED_FOR

_AT_ONCE = 1000

_log = logging.getLogger(__name__)


def delete_ended(context: TableContext) -> None:
    """Delete some of the rows, if the last deletion is old enough."""
    if not context.ended_rows.is_due:
        return
    start, upto = context.ended_rows.begin(context.backend.now_about())
    values = {"start": start, "upto": upto}
    try:
        ended = context.backend.alone(lambda own: own.execute(_deleting(context), values).all(), durable=False)
    except (RefusedError, UnavailableError) as error:
        _log.info(
            "cannot delete the rows of ended groups and keys of table %r: %s", context.name, in_a_line(said_of(error))
        )
        return
    more = len(ended) == _AT_ONCE
    context.ended_rows.end(max(row.ended_at for row in ended) if more else upto, more=more)


def is_left_over(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that `delete_ended` has passed over the row of a group that has ended."""
    return sa.and_(groups.c.ended_at < context.backend.now_sql() - 2 * ENDED_FOR, *needless())


def delete_left_over(context: TableContext, connection: SqlConnection, names: Collection[str]) -> None:
    """Delete such rows among those of these groups, which the transaction has locked."""
    connection.execute(_deleting_left_over(context), {"groups": list(names)})


@built_once(maxsize=256)
def _deleting(context: TableContext) -> sa.Executable:
    start, upto = (sa.bindparam(name, type_=sa.BigInteger) for name in ("start", "upto"))
    is_keyed = context.options.turns_by is not None
    rows, at = (message_keys, message_keys.c.due_at) if is_keyed else (groups, groups.c.ended_at)
    its = (has_ended(context),) if is_keyed else (groups.c.table_id == context.table_id, *needless())
    place = sa.literal_column(f"{rows.name}.ctid")
    ended = sa.select(place).select_from(rows).where(*its, at >= start, at <= upto).order_by(at)
    ended = ended.limit(_AT_ONCE).with_for_update(skip_locked=True).correlate(None)
    # By places, because a planner that believes the catalogue empty would scan all rows for a join.
    places = sa.func.array(ended.scalar_subquery())
    return sa.delete(rows).where(place == sa.any_(places)).returning(at.label("ended_at"))


@built_once(maxsize=256)
def _deleting_left_over(context: TableContext) -> sa.Delete:
    return sa.delete(groups).where(these_groups(context), is_left_over(context))
