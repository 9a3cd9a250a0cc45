"""Counts how many messages of each key are in flight.

A message is in flight from its claim until the ack, the nack or the next claim. When a lease ends, the count does not
change, because the consumer may extend the lease at the same moment. The message is then claimable again, but still
counts. So a limit is exact, whatever the clock does.

MariaDB finds leased messages by a clock, so there a count checks that it was not set (`trusted`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_all
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import leased_keys
from waterclock.tables.databases.postgresql.unrouted_keys import CHANGED_BLOCK
from waterclock.tables.groups.group_state import is_out
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import MESSAGE_KEY
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
    counted = execute_all(connection, counting(context, keys))
    return free_places(context, keys, trusted(context, connection, keys, counted), most)


def counting(context: TableContext, keys: Collection[str]) -> list[Asked]:
    """Return the statement that counts the messages of keys in flight; without a limit, none."""
    limited = sorted(set(keys).difference([NO_KEY]))
    if not limited or context.options.limit is None:
        return []
    return [(_counts(context), {"keys": limited, **leased_from(context)})]


def leased_from(context: TableContext) -> Mapping[str, Any]:
    """Return the parameters of searches for leased messages, if these begin at constants."""
    return context.reached.leased.values(context.backend.now_about()) if context.sql.begins_at_constants else {}


def trusted(
    context: TableContext, connection: SqlConnection, keys: Collection[str], counted: Sequence[SqlRows]
) -> list[Any]:
    """Return the result of `counting`, or that of another count of these keys if its bound may have been wrong."""
    while True:
        rows = [*chain.from_iterable(counted)]
        clocks = [row for row in rows if row.key is None]
        if all(context.reached.leased.is_trusted(int(clock.slot), clock.now) for clock in clocks):
            return rows
        counted = execute_all(connection, counting(context, keys))


def free_places(context: TableContext, keys: Collection[str], counted: Sequence[Any], most: int) -> InFlight:
    """Return how many messages of keys a consumer may get, from the result of `trusted`; ``most`` bounds it."""
    room, free = dict.fromkeys(keys, most), dict.fromkeys(keys, most)
    lapsed: dict[tuple[str, int], int] = {}
    firsts: dict[tuple[str, int], tuple[int, int]] = {}
    limit = context.options.limit_of_a_key
    if limit is None:
        return InFlight(room, free, lapsed, firsts)
    leased = dict.fromkeys(set(keys).difference([NO_KEY]), 0)
    active = dict(leased)
    for row in counted:
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
    if context.sql.begins_at_constants:
        return leased_keys.is_leased() & is_out(rows)
    if not context.sql.is_bounded:
        return is_out(rows)
    return not_acked(rows) & sa.func.coalesce(rows.c.claim_id.is_not(None), sa.false())


@built_once(maxsize=256)
def _counts(context: TableContext) -> sa.Select[*tuple[Any, ...]] | sa.CompoundSelect[*tuple[Any, ...]]:
    rows, now = context.rows, context.backend.now_sql()
    key = context.sql.few(rows.c[MESSAGE_KEY])
    has_lapsed = sa.case((rows.c.time_next <= now, 1), else_=0)
    counts = [sa.func.count().label("leased"), sa.func.coalesce(sa.func.sum(has_lapsed), 0).label("lapsed")]
    found = sa.select(key.label("key"), rows.c.priority, *counts).group_by(key, rows.c.priority)
    found = found.where(context.sql.any_of(key, "keys"))
    if context.sql.begins_at_constants:  # with a row that says when, and from which slot on, it counted
        null, none = sa.null(), sa.literal_column("0")
        found = found.add_columns(null.label("now"), null.label("slot")).where(is_leased(context))
        clock = sa.select(null, null, none, none, now, sa.bindparam("leased_from", type_=sa.BigInteger))
        return sa.union_all(found.with_hint(rows, leased_keys.index_of(rows, "leased")), clock)
    if not context.sql.is_bounded:
        return found.where(is_leased(context))
    firsts = [
        sa.func.coalesce(sa.func.min(column), sa.literal(MAX_NS, sa.BigInteger)).label(name)
        for name, column in (("first_end", rows.c.time_next), ("first_seq", rows.c.seq))
    ]
    its = message_keys.c
    bounds = "leased_from", "leased_seq"
    each = context.sql.newest_of_each(context.table_id, (its.table_id, its.message_key, its.level), "keys", *bounds)
    known = sa.select(*counts, *firsts).where(
        key == each.c.key,
        rows.c.priority == -each.c.level,
        is_leased(context),
        ~context.sql.is_unrouted(rows),
        rows.c.time_next >= each.c.leased_from,
        rows.c.seq >= each.c.leased_seq,
    )
    counted = known.correlate(each).lateral("counted")
    # Plain SQL has changed these since they were claimed. Not in a form that the index of leased messages answers.
    changed = found.add_columns(*firsts).where(
        context.sql.block_of(rows) == sa.literal_column(str(CHANGED_BLOCK)),
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

    With bounds, it counts leased messages of this level only. With `fair_by`, it may be a message of any level of the
    key.
    """
    limit = context.options.limit_of_a_key
    if limit is None:
        return sa.true()
    rows = context.rows
    # Both in this form: SQLite does not use the index for a comparison with a column of texts.
    is_of_key = context.sql.few(rows.c[MESSAGE_KEY]) == context.sql.few(key)
    is_of_level, is_active = rows.c.priority == -level, rows.c.time_next > context.backend.now_sql()
    leased = sa.func.count(rows.c.seq)
    has_lapsed = ~is_active & is_of_level if context.options.fair_by is None else ~is_active
    lapsed, active = (sa.func.count(sa.case((which, 1))) for which in (has_lapsed, is_active))
    # A limit that was lowered may be less than the number of lapsed messages.
    found = sa.select((leased < limit) | ((lapsed > 0) & (active < limit)))
    if context.sql.begins_at_constants:  # the ranges of `is_leased` would not be constant
        found = found.select_from(leased_keys.listed(rows, is_of_key))
        found = found.with_hint(rows, leased_keys.index_of(rows, "leased"))
    else:
        found = found.where(is_of_key, is_leased(context))
    if context.sql.is_bounded:
        its = message_keys.c
        found = found.where(is_of_level, rows.c.time_next >= its.leased_from, rows.c.seq >= its.leased_seq)
    return (key == NO_KEY) | found.correlate(message_keys).scalar_subquery()
