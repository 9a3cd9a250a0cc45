"""Advances the bounds of a table with groups, on a database that hides the ids of transactions.

One is the seq below which no message must be routed, the others are those of `bounded_groups`.

Messages that plain SQL changes after they were routed have a range of the index of their own
(`TableDialect.changed`), so only messages that are written later could be below the bound. As in `bounded_rows`, one
search of uncommitted messages and one of committed messages must find nothing. An INSERT draws a seq before its message
is in the index. So the bound stays behind the seqs that were drawn in the last second, and does not advance while any
statement waits for a lock.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import CHANGED_PLACES
from waterclock.tables.messages.claiming import bounded_groups
from waterclock.tables.messages.claiming.bounded_rows import begins_search
from waterclock.tables.model.claims.bounds import Snapshot


def advance_routed(context: TableContext, consumer: str) -> None:
    """Search for new messages and due groups from the bounds on, so that these advance, if that is due again."""
    if not begins_search(context):
        return
    reached = context.reached
    search = reached.routed.begin()
    of_groups = reached.groups.begin(consumer) if bounded_groups.has_bounds(context) else None
    known = [] if of_groups is None else of_groups.priorities
    values = {"start": search.low} | ({} if of_groups is None else bounded_groups.values_of(of_groups))

    def look(connection: SqlConnection) -> Any:
        return connection.execute(_looking(context, None if of_groups is None else len(known)), values).one()

    drawn = reached.drawn.before(moments.monotonic())
    began = context.backend.alone(context.sql.now_without_lock_waits, durable=False)
    uncommitted = context.backend.look_at_uncommitted(look)
    reached.drawn.note(uncommitted.newest, moments.monotonic())
    committed = context.backend.alone(look, durable=False)
    end = search.known if began is None or drawn is None else max(search.known, min(drawn + 1, CHANGED_PLACES))
    firsts = [found.first_new for found in (uncommitted, committed) if found.first_new is not None]
    reached.routed.found_nothing(search, min([end, *firsts]), Snapshot(committed.now))
    if of_groups is not None:
        found = [bounded_groups.read(known, one[3:]) for one in (uncommitted, committed)]
        now = uncommitted.now if began is None else began
        bounded_groups.note(context, of_groups, now, found, waits=began is None)


@built_once(maxsize=256)
def _looking(context: TableContext, known: int | None) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    start = sa.bindparam("start", type_=sa.BigInteger)
    first = context.sql.by_index(sa.select(rows.c.seq), rows, "unrouted")
    first = first.where(rows.c.routed == sa.literal_column("0"), rows.c.seq >= start).order_by(rows.c.seq).limit(1)
    newest = sa.select(rows.c.seq).order_by(rows.c.seq.desc()).limit(1)
    return sa.select(
        context.backend.now_sql().label("now"),
        first.scalar_subquery().label("first_new"),
        newest.scalar_subquery().label("newest"),
        *([] if known is None else bounded_groups.columns_of(context, known)),
    )
