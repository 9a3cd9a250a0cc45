"""Counts how many messages of each key are in flight.

A message is in flight from its claim until the ack, the nack or the next claim. When a lease ends, the count does not
change, because the consumer may extend the lease at the same moment. The message is then claimable again, but still
counts. So a limit is exact, whatever the clock does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_all
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.postgresql.unrouted_keys import CHANGED_BLOCK
from waterclock.tables.groups.group_state import is_out
from waterclock.tables.model.schema import not_acked
from waterclock.time import MAX_NS

NO_KEY = ""  # the key of messages without one, which are not limited


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages that consumers have."""

    room: dict[str, int]  # how many messages of each key a consumer may get
    free: dict[str, int]  # how many of them may be new
    lapsed: dict[tuple[str, int], int]  # how many messages of a key and level have a lease that has ended
    firsts: dict[
        tuple[str, int], tuple[int, int]
    ]  # the first end of their leases, ns, and their first seq, if the next search can begin there

    def has_claimable(self, place: tuple[str, int]) -> bool:
        """Return whether a consumer may get a message of a key and level, as the condition `has_claimable`."""
        return self.room[place[0]] > 0 and (self.free[place[0]] > 0 or self.lapsed.get(place, 0) > 0)


def in_flight(context: TableContext, connection: SqlConnection, keys: Collection[str], most: int) -> InFlight:
    """Count the messages of keys; ``most`` bounds the results."""
    asked = counting(context, keys)
    return free_places(context, keys, execute_all(connection, asked), most)


def counting(context: TableContext, keys: Collection[str]) -> list[Asked]:
    """Return the statement that counts the messages of keys in flight; without a limit, none."""
    limited = sorted(set(keys).difference([NO_KEY]))
    return [(_counts(context), {"keys": limited})] if limited and context.options.limit is not None else []


def free_places(context: TableContext, keys: Collection[str], counted: Sequence[SqlRows], most: int) -> InFlight:
    """Return how many messages of keys a consumer may get, from the result of `counting`; ``most`` bounds it."""
    room, free = dict.fromkeys(keys, most), dict.fromkeys(keys, most)
    lapsed: dict[tuple[str, int], int] = {}
    firsts: dict[tuple[str, int], tuple[int, int]] = {}
    limit = context.options.limit_of_a_key
    if limit is None:
        return InFlight(room, free, lapsed, firsts)
    leased = dict.fromkeys(set(keys).difference([NO_KEY]), 0)
    active = dict(leased)
    for row in chain.from_iterable(counted):
        if row.key in leased:
            leased[row.key] += row.leased
            active[row.key] += row.leased - int(row.lapsed)
            place = row.key, -row.priority
            lapsed[place] = min(lapsed.get(place, 0) + int(row.lapsed), most)
            if context.sql.is_bounded:
                until, seq = firsts.get(place, (MAX_NS, MAX_NS))
                firsts[place] = min(until, row.first_end), min(seq, row.first_seq)
    room |= {key: max(0, min(most, limit - count)) for key, count in active.items()}
    free |= {key: max(0, min(most, limit - count)) for key, count in leased.items()}
    return InFlight(room, free, lapsed, firsts)


def is_leased(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message is leased or its lease has lapsed, in the form of the index of these."""
    rows = context.rows
    if not context.sql.is_bounded:
        return is_out(rows)
    return not_acked(rows) & sa.func.coalesce(rows.c.claim_id.is_not(None), sa.false())


@built_once(maxsize=256)
def _counts(context: TableContext) -> sa.Select[Any, Any, Any, Any] | sa.CompoundSelect[Any, Any, Any, Any]:
    rows = context.rows
    key = context.sql.leased_key(rows)
    has_lapsed = sa.case((rows.c.time_next <= context.backend.now_sql(), 1), else_=0)
    leased, lapsed = sa.func.count().label("leased"), sa.func.coalesce(sa.func.sum(has_lapsed), 0).label("lapsed")
    firsts = [
        sa.func.coalesce(sa.func.min(column), sa.literal(MAX_NS, sa.BigInteger)).label(name)
        for name, column in (("first_end", rows.c.time_next), ("first_seq", rows.c.seq))
    ]
    found = sa.select(key.label("key"), rows.c.priority, leased, lapsed, *firsts).group_by(key, rows.c.priority)
    if not context.sql.is_bounded:
        return found.where(context.sql.any_of(key, "keys"), is_out(rows))
    its = message_keys.c
    bounds = "leased_from", "leased_seq"
    each = context.sql.newest_of_each(context.table_id, (its.table_id, its.message_key, its.level), "keys", *bounds)
    known = sa.select(leased, lapsed, *firsts).where(
        key == each.c.key,
        rows.c.priority == -each.c.level,
        is_leased(context),
        ~context.sql.is_unrouted(rows),
        rows.c.time_next >= each.c.leased_from,
        rows.c.seq >= each.c.leased_seq,
    )
    counted = known.correlate(each).lateral("counted")
    # Plain SQL has changed these since they were claimed. Not in a form that the index of leased messages answers.
    changed = found.where(
        context.sql.block_of(rows) == sa.literal_column(str(CHANGED_BLOCK)),
        context.sql.any_of(key, "keys"),
        context.sql.is_unrouted(rows),
        not_acked(rows),
        rows.c.claim_id.is_not(None),
    )
    of_each = sa.select(each.c.key, (-each.c.level).label("priority"), *counted.c)
    return sa.union_all(of_each.select_from(each.join(counted, sa.true())), changed)


def has_claimable(
    context: TableContext, key: sa.ColumnElement[str], level: sa.ColumnElement[int]
) -> sa.ColumnElement[bool]:
    """Return the condition that the limit may let a consumer have a message of a key and level.

    With bounds, it counts leased messages of this level only.
    """
    limit = context.options.limit_of_a_key
    if limit is None:
        return sa.true()
    rows = context.rows
    # Both in this form: SQLite does not use the index for a comparison with a column of texts.
    its = [context.sql.leased_key(rows) == context.sql.few(key), is_leased(context)]
    of_level = rows.c.priority == -level, rows.c.time_next >= message_keys.c.gap_to
    if context.sql.is_bounded:
        of_level = of_level[0], rows.c.time_next >= message_keys.c.leased_from
        its += *of_level, rows.c.seq >= message_keys.c.leased_seq
    leased = sa.select(sa.func.count()).where(*its)
    # A limit that was lowered may be less than the number of lapsed messages.
    active = leased.where(rows.c.time_next > context.backend.now_sql()).scalar_subquery()
    lapsed = sa.exists().where(*its, *of_level, rows.c.time_next <= context.backend.now_sql())
    return (key == NO_KEY) | (leased.scalar_subquery() < limit) | (lapsed & (active < limit))
