"""Advances the bound below which no message must be routed, on a database that hides the ids of transactions.

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
from waterclock.tables.messages.claiming.bounded_rows import begins_search
from waterclock.tables.model.claims.bounds import Snapshot


def advance_routed(context: TableContext) -> None:
    """Search for new messages from the bound on, so that it advances, if the last search is old enough."""
    if not begins_search(context):
        return
    reached = context.reached
    search = reached.routed.begin()

    def look(connection: SqlConnection) -> Any:
        return connection.execute(_looking(context), {"start": search.low}).one()

    drawn = reached.drawn.before(moments.monotonic())
    waits = context.backend.alone(context.sql.now_without_lock_waits, durable=False) is None
    uncommitted = context.backend.look_at_uncommitted(look)
    reached.drawn.note(uncommitted.newest, moments.monotonic())
    committed = context.backend.alone(look, durable=False)
    end = search.known if waits or drawn is None else max(search.known, min(drawn + 1, CHANGED_PLACES))
    firsts = [found.first_new for found in (uncommitted, committed) if found.first_new is not None]
    reached.routed.found_nothing(search, min([end, *firsts]), Snapshot(committed.now, None, None))


@built_once(maxsize=256)
def _looking(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    start = sa.bindparam("start", type_=sa.BigInteger)
    first = context.sql.by_unrouted_index(sa.select(rows.c.seq), rows)
    first = first.where(rows.c.routed == sa.literal_column("0"), rows.c.seq >= start).order_by(rows.c.seq).limit(1)
    newest = sa.select(rows.c.seq).order_by(rows.c.seq.desc()).limit(1)
    return sa.select(
        context.backend.now_sql().label("now"),
        first.scalar_subquery().label("first_new"),
        newest.scalar_subquery().label("newest"),
    )
