"""Counts a table's messages and groups for monitoring, equally fast at any size.

`table_stats` counts every message, which takes seconds for millions of them. This module reads at most `COUNTED`
messages. If there are more, it estimates their number from samples spread evenly over the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.settled_values import is_exhausted_sql
from waterclock.tables.messages.rows.process_heartbeat import RATE_SECONDS
from waterclock.tables.model.claims.due_slots import due_order
from waterclock.tables.model.row_conditions import EXPIRED, is_expired, not_acked
from waterclock.tables.model.schema import PARTITIONED

COUNTED = 1_000
"""Maximum messages, or groups, counted one by one. Chosen by measurement: more takes too long on a slow machine."""

WINDOWS, WINDOW = 16, 64
"""The sample: this many windows, each of this many consecutive messages.

A state's share is then exact to a few percent.
"""

PRIORITIES = 8
"""Maximum priorities whose later messages are counted one by one, if the table has more than `COUNTED` messages."""

_NS = 1_000_000_000
_Select = sa.Select[*tuple[Any, ...]]

STATES = ("ready", "scheduled", "in_flight", "delayed", "held", "expired")
"""The states of an unacked message, as in `TableStats`; each message counts in one of them.

A message of a blocked group counts as if the group were not blocked, because that is not read here.
"""


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """The number of unacked messages of a table by state, exact or estimated."""

    messages: dict[str, int]  # how many there are in each of `STATES`
    oldest_age: int | None  # for how long the earliest message read has been due, ns; None if none was due
    exact: bool  # whether every message was counted

    @property
    def depth(self) -> int:
        """How many messages are not acked, without expired ones."""
        return sum(self.messages.values()) - self.messages["expired"]


@dataclass(frozen=True, slots=True)
class GroupsEstimate:
    """The number of blocked groups of a table."""

    blocked: int
    """Groups that have messages, none of which will be sent unless someone acts. At most `COUNTED` are counted."""
    exhausted: int  # how many of these have a first message that has used up its attempts
    exact: bool  # whether every group was counted


def estimate_messages(context: TableContext, connection: sa.Connection, now: int) -> TableEstimate:
    """Count the unacked messages at a time, ns, or estimate them if there are more than `COUNTED`."""
    counted = connection.execute(_counting(context), {"now": now}).one()
    if counted.total <= COUNTED:
        return TableEstimate(_by_state(counted), _age(now, counted.earliest), exact=True)
    low, high = connection.execute(_ends(context)).one()
    width = max((high - low + 1) / WINDOWS, 1.0)
    starts = {f"start_{place}": low + int(width * place + (width - WINDOW) / 2) for place in range(WINDOWS)}
    sampled = connection.execute(_sampling(context), {"now": now, **starts}).one()
    # At least the counted ones: the sample may miss messages that are close together.
    factor = max((high - low + 1) / (WINDOWS * WINDOW), 1.0)
    total = max(COUNTED + 1, round(sampled.total * factor))
    shares = _by_state(sampled if sampled.total else counted)
    found = sum(shares.values())
    messages = {state: round(total * count / found) for state, count in shares.items()}
    if not context.options.groups:
        _count_later(context, connection, now, messages, total)
    earliest = min((one for one in (counted.earliest, sampled.earliest) if one is not None), default=None)
    return TableEstimate(messages, _age(now, earliest), exact=False)


def _count_later(
    context: TableContext, connection: sa.Connection, now: int, messages: dict[str, int], total: int
) -> None:
    """Replace the estimates of leased and later messages by counts, because a long queue has few of them."""
    later: dict[str, int] = dict.fromkeys(STATES, 0)
    below: int | None = None
    for _ in range(PRIORITIES):
        below = connection.execute(_next_priority(context, first=below is None), {"below": below}).scalar()
        if below is None:
            break
        found = connection.execute(_counting_later(context), {"now": now, "priority": below}).one()
        if found.total > COUNTED:
            return
        later = {state: count + later[state] for state, count in _by_state(found).items()}
    else:
        return
    due = max(total - sum(later.values()), 0)
    for state in ("scheduled", "in_flight", "delayed", "held"):
        messages[state] = later[state]
    messages["ready"] = max(due - messages["expired"], 0)


def estimate_groups(context: TableContext, connection: sa.Connection) -> GroupsEstimate:
    """Count the blocked groups, up to `COUNTED`."""
    if context.options.groups is None:
        return GroupsEstimate(0, 0, exact=True)
    which = context.sql.blocked_groups(connection, context.table_id)
    blocked, exhausted = connection.execute(_standing(context, which)).one()
    return GroupsEstimate(min(blocked, COUNTED), int(exhausted), exact=blocked <= COUNTED)


def count_acked(context: TableContext, connection: sa.Connection) -> tuple[int, bool]:
    """Count the acked messages, up to `COUNTED`, and return whether there are more. Dropped ones do not count."""
    looked, acked = connection.execute(_acked(context)).one()
    return min(acked, COUNTED), looked > COUNTED


def rate_of_acks(context: TableContext, connection: sa.Connection, now: int) -> float:
    """Return the messages per second acked in the last minute, or since the `COUNTED`-th newest ack if that is less."""
    count, earliest = connection.execute(_acked_lately(context), {"since": now - RATE_SECONDS * _NS}).one()
    if count < COUNTED:
        return count / RATE_SECONDS
    return count / (max(now - earliest, 1) / _NS)


def _by_state(counted: Any) -> dict[str, int]:
    return {state: getattr(counted, state) for state in STATES}


def _age(now: int, earliest: int | None) -> int | None:
    return now - earliest if earliest is not None and earliest <= now else None


_NEEDED = ("time_scheduled", "time_next", "epoch", "claim_id", "ack_held_at", "expires_at")


def _some(context: TableContext, *columns: sa.ColumnElement[Any]) -> _Select:
    """Select up to one more than `COUNTED` unacked messages by an index of them, in no particular order."""
    rows = context.rows
    by_group = context.options.groups is not None and not context.sql.orders_groups_by_priority
    order = rows.c.group_id if by_group else rows.c.priority.desc()
    return sa.select(*columns).where(rows.c.time_acked.is_(None)).order_by(order).limit(COUNTED + 1)


def state_sql(source: sa.FromClause) -> sa.ColumnElement[str]:
    """Return which of `STATES` an unacked message is in at the parameter ``now``, ns."""
    now = sa.bindparam("now", type_=sa.BigInteger)
    due = sa.func.coalesce(source.c.time_next, source.c.time_scheduled, 0) <= now
    held, expired = source.c.ack_held_at.is_not(None), is_expired(source, now)
    sent = sa.func.coalesce(source.c.epoch, 0) > 0
    return sa.case(
        (held, "held"),
        (expired, "expired"),
        (due, "ready"),
        (source.c.claim_id.is_not(None), "in_flight"),
        (sent, "delayed"),
        else_="scheduled",
    )


def _summed(source: sa.FromClause) -> _Select:
    named = sa.select(state_sql(source).label("state"), source.c.time_scheduled).subquery("named")
    counts = [_count(named.c.state == each).label(each) for each in STATES]
    earliest = sa.func.min(sa.case((named.c.state != "expired", named.c.time_scheduled))).label("earliest")
    return sa.select(sa.func.count().label("total"), *counts, earliest).select_from(named)


@built_once(maxsize=256)
def _counting(context: TableContext) -> _Select:
    return _summed(_some(context, *(context.rows.c[name] for name in _NEEDED)).subquery("some"))


@built_once(maxsize=256)
def _ends(context: TableContext) -> _Select:
    seq = context.rows.c.seq
    which = [context.rows.c.time_acked.is_(None)] if context.rows.info.get(PARTITIONED) else []
    lowest, highest = (sa.select(end(seq)).where(*which).scalar_subquery() for end in (sa.func.min, sa.func.max))
    return sa.select(lowest.label("low"), highest.label("high"))


@built_once(maxsize=256)
def _sampling(context: TableContext) -> _Select:
    rows = context.rows

    def window(place: int) -> _Select:
        start = sa.bindparam(f"start_{place}", type_=sa.BigInteger)
        inside = (rows.c.seq >= start) & (rows.c.seq < start + WINDOW)
        return sa.select(*(rows.c[name] for name in _NEEDED)).where(inside, not_acked(rows))

    return _summed(sa.union_all(*map(window, range(WINDOWS))).subquery("sample"))


@built_once(maxsize=256)
def _next_priority(context: TableContext, *, first: bool) -> _Select:
    rows = context.rows
    lower = [] if first else [rows.c.priority < sa.bindparam("below", type_=sa.Integer)]
    found = sa.select(rows.c.priority).where(rows.c.time_acked.is_(None), *lower)
    return found.order_by(rows.c.priority.desc()).limit(1)


@built_once(maxsize=256)
def _counting_later(context: TableContext) -> _Select:
    rows = context.rows
    now = sa.bindparam("now", type_=sa.BigInteger)
    later = (rows.c.priority == sa.bindparam("priority", type_=sa.Integer)) & (rows.c.time_next > now)
    some = sa.select(*(rows.c[name] for name in _NEEDED)).where(rows.c.time_acked.is_(None), later)
    return _summed(some.order_by(*due_order(rows)).limit(COUNTED + 1).subquery("some"))


def _standing(context: TableContext, which: sa.ColumnElement[bool]) -> _Select:
    rows = context.rows
    some = sa.select(groups.c.group_id, groups.c.head).where(which).limit(COUNTED + 1).subquery("some")
    head = (
        sa.select(sa.case((is_exhausted_sql(context), 1), else_=0))
        .where(rows.c.group_id == some.c.group_id, rows.c.position == some.c.head, rows.c.time_acked.is_(None))
        .limit(1)
        .correlate(some)
        .scalar_subquery()
    )
    return sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(head), 0)).select_from(some)


@built_once(maxsize=256)
def _acked(context: TableContext) -> _Select:
    rows = context.rows
    some = sa.select(rows.c.acked_by).where(rows.c.time_acked.is_not(None)).limit(COUNTED + 1).subquery("some")
    return sa.select(sa.func.count(), _count(some.c.acked_by.is_distinct_from(EXPIRED))).select_from(some)


@built_once(maxsize=256)
def _acked_lately(context: TableContext) -> _Select:
    acked = context.rows.c.time_acked
    lately = sa.select(acked).where(acked > sa.bindparam("since", type_=sa.BigInteger))
    some = lately.order_by(acked.desc()).limit(COUNTED).subquery("some")
    return sa.select(sa.func.count(), sa.func.min(some.c.time_acked))


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
