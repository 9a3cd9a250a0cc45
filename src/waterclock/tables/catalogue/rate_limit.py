"""Limits how many messages a table delivers per second to all its consumers together, by the database's clock.

A claim under a rate limit locks the row with the limit's state until the claim commits. So the limit counts exactly the
claimed messages. If a process dies, the database rolls its claim back, and the messages do not count. Tables without a
rate limit do not use this module.
"""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import totals
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.model.timing.rate import Rate

# Built once, because each is compiled once.
_ITS = totals.c.table_id == sa.bindparam("table")
_STATE = sa.select(totals.c.rate_next).where(_ITS)
_LOCKED_STATE = _STATE.with_for_update()
_NOTING = sa.update(totals).where(_ITS).values(rate_next=sa.bindparam("state"))


def rate_of(context: TableContext) -> Rate | None:
    return None if context.options.rate_limit is None else Rate.of(context.options.rate_limit)


def rate_free_at(context: TableContext, connection: sa.Connection) -> int | None:
    """Return when the rate limit allows the next message, ns; None without a limit."""
    rate = rate_of(context)
    return None if rate is None else rate.free_at(connection.execute(_STATE, _of(context)).scalar_one())


def rate_allows(context: TableContext, connection: SqlConnection, most: int) -> int:
    """Return how many of ``most`` messages may go now; blocks other claims until the transaction ends."""
    rate = rate_of(context)
    if rate is None:
        return most
    due, now = connection.execute(_LOCKED_STATE, _of(context)).scalar_one(), context.backend.now(connection)
    anchored = rate.anchored(due, now)
    if anchored < due:
        connection.execute(_NOTING, {**_of(context), "state": anchored})
    return rate.allowed(anchored, now, most)


def note_sent(context: TableContext, connection: SqlConnection, count: int) -> None:
    """Record that ``count`` of the allowed messages were sent."""
    rate = rate_of(context)
    if rate is None or not count:
        return
    due = connection.execute(_STATE, _of(context)).scalar_one()
    state = rate.taken(due, context.backend.now(connection), count)
    connection.execute(_NOTING, {**_of(context), "state": state})


def forget_rate(connection: sa.Connection, table_id: int) -> None:
    """Reset the state, because the limit changed."""
    connection.execute(sa.update(totals).where(totals.c.table_id == table_id).values(rate_next=0))


def _of(context: TableContext) -> dict[str, int]:
    return {"table": context.table_id}
