"""Counts how many messages of each key are in flight.

A message is in flight from its claim until the ack, the nack or the next claim. When a lease ends, the count does not
change, because the consumer may extend the lease at the same moment. The message is then claimable again, but still
counts. So a limit is exact, whatever the clock does.

MariaDB finds leased messages by a clock, so there a count checks that it was not set (`_is_trusted`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.driver_fast_path import Asked, execute_all
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import leased_keys
from waterclock.tables.databases.postgresql.unrouted_keys import CHANGED_BLOCK
from waterclock.tables.groups.group_state import is_out
from waterclock.tables.keys.turn_levels import LEASED
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.schema import MESSAGE_KEY, not_acked
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
    return free_places(context, connection, keys, execute_all(connection, counting(context, keys)), most)


def counting(context: TableContext, keys: Collection[str]) -> list[Asked]:
    """Return the statement that counts the messages of keys in flight; without a limit, none."""
    limited = sorted(set(keys).difference([NO_KEY]))
    if not limited or context.options.limit is None:
        return []
    return [(_counts(context), {"keys": limited, **leased_from(context)})]


def leased_from(context: TableContext) -> dict[str, Any]:
    """Return the parameters of searches for leased messages, if these begin at constants."""
    if not context.sql.begins_at_constants:
        return {}
    bound = context.reached.sleeping.low(UNASSIGNED, LEASED)
    return leased_keys.values_of(bound, context.backend.now_about())


def free_places(
    context: TableContext, connection: SqlConnection, keys: Collection[str], counted: Sequence[SqlRows], most: int
) -> InFlight:
    """Return how many messages of keys a consumer may get, from the result of `counting`; ``most`` bounds it.

    If the bound of the count may be wrong, they are counted again.
    """
    room, free = dict.fromkeys(keys, most), dict.fromkeys(keys, most)
    lapsed: dict[tuple[str, int], int] = {}
    firsts: dict[tuple[str, int], tuple[int, int]] = {}
    limit = context.options.limit_of_a_key
    if limit is None:
        return InFlight(room, free, lapsed, firsts)
    leased = dict.fromkeys(set(keys).difference([NO_KEY]), 0)
    active = dict(leased)
    rows = [*chain.from_iterable(counted)]
    while context.sql.begins_at_constants and not _is_trusted(context, rows):
        rows = [*chain.from_iterable(execute_all(connection, counting(context, keys)))]
    for row in rows:
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


def _is_trusted(context: TableContext, counted: Sequence[Any]) -> bool:
    """Return whether the bound of a count is true; otherwise forget it, so that the next count reads all leases."""
    reached = context.reached
    # Its ``leased`` is the time, and its ``lapsed`` the first slot that was counted.
    [clock] = [row for row in counted if row.key is None] or [None]
    bound = reached.sleeping.of_unassigned().get(LEASED)
    if clock is None or bound is None or not clock.lapsed:
        return True
    read, first = reached.clock_read, int(clock.lapsed)
    is_old = read is None or moments.monotonic() - read.began > leased_keys.TRUSTED_FOR
    if is_old or leased_keys.is_behind(clock.leased, first):
        bound.reset()
    # Another thread may have forgotten the bound since the count.
    return first <= leased_keys.first_slot(bound.value)


def is_leased(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message is leased or its lease has lapsed, in the form of the index of these."""
    rows = context.rows
    if not context.sql.is_bounded:
        return is_out(rows)
    return not_acked(rows) & sa.func.coalesce(rows.c.claim_id.is_not(None), sa.false())


@built_once(maxsize=256)
def _counts(context: TableContext) -> sa.Select[Any, Any, Any, Any] | sa.CompoundSelect[Any, Any, Any, Any]:
    rows = context.rows
    by_slots = context.sql.begins_at_constants
    key = rows.c[MESSAGE_KEY] if by_slots else context.sql.leased_key(rows)
    has_lapsed = sa.case((rows.c.time_next <= context.backend.now_sql(), 1), else_=0)
    leased, lapsed = sa.func.count().label("leased"), sa.func.coalesce(sa.func.sum(has_lapsed), 0).label("lapsed")
    firsts = [
        sa.func.coalesce(sa.func.min(column), sa.literal(MAX_NS, sa.BigInteger)).label(name)
        for name, column in (("first_end", rows.c.time_next), ("first_seq", rows.c.seq))
    ]
    found = sa.select(key.label("key"), rows.c.priority, leased, lapsed, *firsts).group_by(key, rows.c.priority)
    if by_slots:  # with a row of the current time, which is behind the bound if the clock was set back, and the bound
        found = found.with_hint(rows, leased_keys.index_of(rows, "leased"))
        found = found.where(leased_keys.is_leased(), context.sql.any_of(key, "keys"), is_out(rows))
        none = sa.literal_column("0")
        first = sa.bindparam("leased_from", type_=sa.BigInteger)
        clock = sa.select(sa.null(), sa.null(), context.backend.now_sql(), first, none, none)
        return sa.union_all(found, clock)
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
    if context.sql.begins_at_constants:
        return (key == NO_KEY) | _has_free_place(rows, limit, key, level, context.backend.now_sql())
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


def _has_free_place(
    rows: sa.Table, limit: int, key: sa.ColumnElement[str], level: sa.ColumnElement[int], now: sa.ColumnElement[int]
) -> sa.ColumnElement[bool]:
    """Return the condition that is `has_claimable`, by a search that begins at the slots of leased messages."""
    listed = leased_keys.listed(rows, rows.c[MESSAGE_KEY] == key)
    leased, is_active = sa.func.count(rows.c.seq), rows.c.time_next > now
    lapsed, active = (
        sa.func.count(sa.case((which, 1))) for which in (~is_active & (rows.c.priority == -level), is_active)
    )
    found = sa.select((leased < limit) | ((lapsed > 0) & (active < limit))).select_from(listed)
    return found.with_hint(rows, leased_keys.index_of(rows, "leased")).correlate(message_keys).scalar_subquery()
