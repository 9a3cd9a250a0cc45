"""Searches the keys whose turns come next."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.keys.key_limits import has_claimable, leased_from
from waterclock.tables.keys.key_rows import Place, columns_of_state, key_of_rows
from waterclock.tables.keys.locking_search import LockingSearch, lock_found, locking_search
from waterclock.tables.keys.turn_tiers import FOLLOWS, HAS_TURN, has_turn, lows_of, searched
from waterclock.tables.model.schema import MESSAGE_KEY


def next_turns(
    context: TableContext,
    connection: SqlConnection,
    count: int,
    tier: int,
    where: sa.ColumnElement[bool] | None,
    *,
    others: bool,
) -> dict[Place, Any]:
    """Lock the next rows of keys, of the lowest tier first, that are not full.

    Return them in the order of their turns, with ``tier``, ``had`` and those of `state_of`. In a table with
    ``fair_by``, ``has_others`` says whether the key has rows of other priorities.

    Only keys count of this ``tier`` or a higher one, and with a due message that meets the condition ``where``.
    ``others`` is as in `searched`.
    """
    lows = lows_of(context)
    values = {"count": count, "from": tier, **lows.values, **leased_from(context)}
    rows = lock_found(connection, [_next_turns(context, where, lows.known, others=others)], values)
    return {(row.message_key, row.level): row for row in rows}


@built_once(maxsize=256)
def _next_turns(
    context: TableContext, where: sa.ColumnElement[bool] | None, known: int, *, others: bool
) -> LockingSearch:
    key = message_keys.c.message_key
    chosen = sa.true() if where is None else _has_chosen(context, where)
    its = message_keys.c
    found = sa.select(key, its.level, its.tier, its.had, *columns_of_state(), _has_others(context).label("has_others"))
    found = found.where(has_claimable(context, key, its.level), chosen)
    if where is None:  # the first row of a key may have no message that meets a condition
        found = found.where(_is_next_of_key(context))
    found = found.where(its.tier >= sa.bindparam("from", type_=sa.BigInteger))
    found = found.where(has_turn(context))
    if not context.sql.is_bounded:
        found = found.where(*searched(context, known, others=others))
        return locking_search(context, found, its.tier, its.turn, index="turn")
    count = sa.bindparam("count", type_=sa.Integer)
    found = found.order_by(its.tier, its.turn).limit(count).with_for_update(skip_locked=True)
    # The server runs one after the other, until it has enough rows.
    ranges = (found.where(one).subquery() for one in searched(context, known))
    due = sa.union_all(*(sa.select(*each.c) for each in ranges)).subquery("due")
    return LockingSearch(sa.select(*due.c).limit(count))


def _has_chosen(context: TableContext, where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return whether a due message of a row meets a condition; in a table with ``fair_by``, one of any of its key."""
    rows = context.rows

    def of_row(its: Any) -> sa.ColumnElement[bool]:
        of = rows.c[MESSAGE_KEY] == message_keys.c.message_key, rows.c.priority == -its.level
        due = (
            rows.c.time_acked.is_(None),
            rows.c.time_next >= its.first_at,
            rows.c.time_next <= context.backend.now_sql(),
        )
        return sa.exists().where(*of, *due, where)

    def of_waiting(its: Any) -> sa.ColumnElement[bool]:
        return sa.or_(*(its.is_due == sa.literal_column(str(state)) for state in (HAS_TURN, FOLLOWS))) & of_row(its)

    chosen = of_row(message_keys.c)
    if context.options.fair_by is None:
        return chosen
    more = "is_due", "first_at"
    return chosen | context.sql.has_neighbour(message_keys, context.table_id, key_of_rows(), of_waiting, *more)


def _has_others(context: TableContext) -> sa.ColumnElement[bool]:
    """Return whether a key has rows of other priorities, in a table with one tier."""
    if context.options.fair_by is None:
        return sa.false()
    return context.sql.has_neighbour(message_keys, context.table_id, key_of_rows(), lambda _: sa.true())


def _is_next_of_key(context: TableContext) -> sa.ColumnElement[bool]:
    """Return whether no other row of the key has an earlier turn.

    So claims that run at the same time do not lock different rows of a key. Several of its rows have turns if messages
    of other priorities became due after its last turn.
    """
    if context.options.fair_by is None:
        return sa.true()
    its = message_keys.c

    def has_earlier_turn(other: Any) -> sa.ColumnElement[bool]:
        is_before = other.level > its.level if context.sql.is_bounded else other.level < its.level
        is_earlier = (other.turn < its.turn) | ((other.turn == its.turn) & is_before)
        return (other.is_due == sa.literal_column(str(HAS_TURN))) & is_earlier

    more = "is_due", "turn"
    return ~context.sql.has_neighbour(message_keys, context.table_id, key_of_rows(), has_earlier_turn, *more)
