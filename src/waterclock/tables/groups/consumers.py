"""Registers the consumers of exclusive groups. Each has a row, with a lease that claims and heartbeats renew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import LEASE_SLOT_BITS, consumers, groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.group_state import (
    Out,
    belongs_to,
    drains_to,
    epoch_begun,
    has_something_out,
    lock_groups,
    lock_out,
    settle,
    these_groups,
)
from waterclock.tables.model.claims.bounds import UNASSIGNED

_RELEASED_AT_ONCE = 1000

_COUNTED_AT_MOST = 1000  # maximum number of groups that a claim counts to compute its fair share

GONE = -1
"""The session of a consumer that left while some of its groups were locked: its row stays, unrenewed, until those are
released.
"""

_TRY_AGAIN = 200_000_000  # after how long such locked groups are released, ns, so that waiting consumers do not spin


class Joined(Enum):
    """The result of `join`; ``REFUSED``: another live session has the name, or it must be retried."""

    REFUSED = auto()
    NEW = auto()
    KNOWN = auto()


def join(context: TableContext, connection: SqlConnection, name: str, max_groups: int | None, now: int) -> Joined:
    """Register a live consumer.

    Leases of the consumer's earlier session are released first. Otherwise its messages and later ones of the same
    groups would be leased at the same time.
    """
    known = connection.execute(_KNOWN, {"table": context.table_id, "who": name}).first()
    session, until = context.backend.session, now + context.options.ack_wait
    values = {"table": context.table_id, "who": name, "process": session, "until": until, "most": max_groups}
    if known is None:
        connection.execute(_JOINING, values)
        return Joined.NEW
    if known.session != session:
        if (known.lease_until > now and known.session != GONE) or not _end(context, connection, name, now):
            return Joined.REFUSED
        connection.execute(_RENEWING, values)
        return Joined.NEW
    stale = known.lease_until < until - context.options.ack_wait // 3
    if stale or (known.session, known.max_groups) != (session, max_groups):
        connection.execute(_RENEWING, {**values, "until": max(known.lease_until, until)})
    return Joined.KNOWN


def renew(context: TableContext, connection: SqlConnection, name: str, until: int) -> None:
    """Extend a consumer's lease to at least this time, ns, unless another process has the name."""
    mine = {"table": context.table_id, "who": name, "process": context.backend.session}
    execute_later(connection, (_LIVING, {**mine, "until": until}))


def renew_all(context: TableContext, connection: sa.Connection, names: Sequence[str]) -> None:
    """Renew the leases of several consumers, as `renew`."""
    until = context.backend.now(connection) + context.options.ack_wait
    for some in pieces(names):
        mine = {"table": context.table_id, "names": some, "process": context.backend.session}
        connection.execute(_LIVING_TOGETHER, {**mine, "until": until})


def claim_due(context: TableContext, name: str, session: int | None, lease_until: int | None) -> tuple[int, bool]:
    """Return when a consumer has to claim next, to get or renew a lease, ns; and whether it gets nothing until then.

    Immediately if it has joined and does not have its share of the groups yet.

    ``session`` and ``lease_until`` are the consumer's row; None if it has none.
    """
    if lease_until is None or (session == context.backend.session and name in context.unbalanced):
        return 0, False
    if session != context.backend.session:
        return lease_until, True
    return lease_until - context.options.ack_wait // 2, False


def release_lapsed(context: TableContext, connection: SqlConnection, now: int) -> int:
    """Release groups of consumers whose lease has ended, some thousands each; return the number of consumers."""
    lapsed = list(connection.scalars(_LAPSED, {"table": context.table_id, "now": now}))
    for name in lapsed:
        if _end(context, connection, name, now):
            connection.execute(sa.delete(consumers).where(*_one(context, name)))
    return len(lapsed)


def release_idle(context: TableContext, connection: SqlConnection, now: int) -> None:
    """Release groups that have had no messages for ``group_idle``."""
    before = now - (context.options.group_idle or 0)
    found = list(connection.scalars(_IDLE, {"table": context.table_id, "before": before}))
    _release(context, connection, found)


def leave(context: TableContext, connection: SqlConnection, name: str) -> bool:
    """Release a consumer's groups and their leased messages, some thousands at a time; False if there may be more.

    Does nothing if another process has the name. Locked groups are left to later claims.
    """
    context.unbalanced.discard(name)
    known = connection.execute(_KNOWN, {"table": context.table_id, "who": name}).first()
    if known is None or known.session != context.backend.session:
        return True
    now = context.backend.now(connection)
    if _release_some(context, connection, name, now):
        return False
    if _end(context, connection, name, now):
        connection.execute(sa.delete(consumers).where(*_one(context, name)))
    return True


def living_consumers(context: TableContext, connection: SqlConnection, now: int) -> set[str]:
    """Return the names of a table's consumers with a valid lease."""
    return set(connection.scalars(_names_of_living(), {"table": context.table_id, "now": now}))


def fair_share(context: TableContext, connection: SqlConnection, name: str, most: int, now: int) -> int:
    """Return how many unassigned groups a consumer may take in a claim, at most ``most``.

    A consumer waits if none of its groups has messages and it has room for more. The due groups are shared among the
    claiming and the waiting consumers, rounded up, so that no group is left over if one of them never claims.
    """
    values = {"table": context.table_id, "who": name, "now": now}
    idle = connection.execute(_idle_beside(), values).all()
    others = sum(one.max_groups is None or room_of(context, connection, one.name, one.max_groups) > 0 for one in idle)
    if not others:
        return most
    enough = min(most * (others + 1), _COUNTED_AT_MOST)
    due = connection.execute(_due_for_any(), {**values, "enough": enough}).scalar_one()
    return min(most, max(1, -(-due // (others + 1))))


def may_claim(context: TableContext, name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a consumer may claim at once: its lease is long enough, and nothing must be released.

    The process and ``max_groups`` are bound as ``process`` and ``most_groups``.
    """
    now, wait = context.backend.now_sql(), context.options.ack_wait
    its = consumers.c.table_id == context.table_id
    alive = sa.exists().where(
        its,
        consumers.c.name == name,
        consumers.c.session == sa.bindparam("process", type_=sa.BigInteger),
        consumers.c.lease_until >= now + (wait - wait // 3),
        consumers.c.max_groups.is_not_distinct_from(sa.bindparam("most_groups", type_=sa.BigInteger)),
    )
    over = sa.exists().where(its, _is_over(now))
    if context.options.group_idle is None:
        return alive & ~over
    unused = sa.exists().where(
        groups.c.table_id == context.table_id,
        groups.c.idle_since <= now - context.options.group_idle,
        groups.c.pinned == 0,
    )
    return alive & ~over & ~unused


def share_sql(
    context: TableContext, name: sa.ColumnElement[str], most: sa.ColumnElement[int], taken: sa.ColumnElement[int]
) -> sa.Select[Any]:
    """Return SQL for how many unassigned groups a consumer may take, as `fair_share` and `room_of`.

    ``taken`` is how many of ``most`` it took in earlier transactions of the same claim.
    """
    now = context.backend.now_sql()
    its = groups.c.table_id == context.table_id
    something = (
        sa.select(groups.c.priority)
        .where(its, groups.c.assigned == consumers.c.name, groups.c.ready_at.is_not(None))
        .order_by(groups.c.priority)  # as the index of those has it, else a planner goes through all groups
        .limit(sa.literal_column("1"))
        .correlate(consumers)
        .scalar_subquery()
    )
    others = (
        sa.select(sa.func.count().label("others"))
        .select_from(consumers)
        .where(
            consumers.c.table_id == context.table_id,
            consumers.c.name != name,
            consumers.c.lease_until > now,
            consumers.c.session != GONE,
            something.is_(None),
            has_room(context),
        )
        .cte("waiting")
    )
    waiting = sa.select(others.c.others).scalar_subquery()
    found = (
        sa.select(groups.c.ready_at)
        .where(its, groups.c.assigned == sa.literal_column("''"), groups.c.ready_at.is_not(None))
        .order_by(groups.c.priority)
        .limit(sa.func.least(most * (waiting + 1), _COUNTED_AT_MOST))
        .subquery()
    )
    due = sa.select(sa.func.count()).select_from(found).where(found.c.ready_at <= now).scalar_subquery()
    share = sa.case(
        ((most <= 1) | (waiting == 0), most),
        else_=sa.func.least(most, sa.func.greatest(1, (due + waiting) // (waiting + 1))),
    )
    most_groups = sa.bindparam("most_groups", type_=sa.BigInteger)
    room = sa.case((most_groups.is_(None), most), else_=sa.func.greatest(0, most_groups - _count_of(context, name)))
    return sa.select(sa.func.least(share - taken, room))


def is_new_to(name: Any, session: Any) -> sa.ColumnElement[bool]:
    """Return the condition that another consumer, or an earlier session, was the last to get a message of a group."""
    changed = groups.c.had_by.is_distinct_from(name) | groups.c.had_in.is_distinct_from(session)
    return changed | groups.c.had_first.is_(None)


def replace_first(context: TableContext, connection: SqlConnection, first: Mapping[str, int | None]) -> None:
    """Note which message of each group its owner gets first, by position; None: it has had none."""
    lock_groups(context, connection, first)
    values = [{"groups": [name], "first": position} for name, position in first.items()]
    execute_later(connection, *[(_replacing_first(context), each) for each in values])


def has_room(context: TableContext) -> sa.ColumnElement[bool]:
    """Build the SQL condition that a consumer, a row of the outer statement, may get more groups."""
    return sa.or_(consumers.c.max_groups.is_(None), consumers.c.max_groups > _count_of(context, consumers.c.name))


def _count_of(context: TableContext, owner: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
    """Count a consumer's groups, and those that are draining to it."""
    counted = sa.select(sa.func.count()).select_from(groups).where(groups.c.table_id == context.table_id)
    owned, coming = (
        counted.where(which).correlate(consumers).scalar_subquery() for which in (belongs_to(owner), drains_to(owner))
    )
    return owned + coming


def room_of(context: TableContext, connection: SqlConnection, me: str, most: int) -> int:
    """Return how many more groups a consumer may have, at most ``most``; reads at most twice as many."""
    has = connection.execute(_counting(), {"table": context.table_id, "who": me, "most": most}).scalar_one()
    return max(0, most - has)


def is_ownerless() -> sa.ColumnElement[bool]:
    """Return the condition that a group belongs, unpinned, to a consumer that is gone: no claim releases it."""
    lives = sa.exists().where(consumers.c.table_id == groups.c.table_id, consumers.c.name == groups.c.assigned)
    return (groups.c.assigned != UNASSIGNED) & (groups.c.pinned == 0) & ~lives


def release_ownerless(context: TableContext, connection: SqlConnection, names: Sequence[str]) -> None:
    """Release those of these locked groups whose consumer is gone."""
    ownerless = sa.select(groups.c.group_id).where(these_groups(context), is_ownerless())
    out = lock_out(context, connection, connection.scalars(ownerless, {"groups": names}))
    _take_back(context, connection, out, context.backend.now(connection))


def _end(context: TableContext, connection: SqlConnection, name: str, now: int) -> bool:
    """Release the groups of a consumer that is gone; return False if some remain, so that its row must stay.

    Without the row they would stay assigned forever to a consumer that is not known to be dead.
    """
    more = _release_some(context, connection, name, now)
    its = {"table": context.table_id, "who": name}
    if connection.execute(_any_assigned(context), its).first() is None:
        return True
    connection.execute(_LEAVING_LATER, {**its, "process": GONE, "until": now if more else now + _TRY_AGAIN})
    return False


def _release_some(context: TableContext, connection: SqlConnection, name: str, now: int) -> bool:
    """Release some thousands of a consumer's unlocked groups; return True if there may be more.

    It does not wait for locked groups or messages, whose holder may be waiting for this transaction.
    """
    after: str | None = None
    found: list[str] = []
    taken = 0
    while taken < _RELEASED_AT_ONCE:
        its = {"table": context.table_id, "who": name, "after": after}
        found = list(connection.scalars(_assigned(context, begins=after is None), its))
        out = lock_out(context, connection, found)
        _take_back(context, connection, out, now)
        taken += len(out.names)
        if len(found) < _RELEASED_AT_ONCE:
            return False
        after = found[-1]
    return True


def _take_back(context: TableContext, connection: SqlConnection, out: Out, now: int) -> None:
    """Release groups, and take back their leased messages.

    Otherwise another consumer would get later messages while this one still has earlier ones.
    """
    for some in pieces(out.seqs):
        connection.execute(_taking_back(context), {"seqs": some, "now": now})
    _release(context, connection, out.names)


def _release(context: TableContext, connection: SqlConnection, names: list[str]) -> None:
    if names:
        connection.execute(_releasing(context), {"groups": names})
        settle(context, connection, names)


@built_once(maxsize=1)
def _names_of_living() -> sa.Select[Any]:
    is_alive = consumers.c.lease_until > sa.bindparam("now", type_=sa.BigInteger)
    is_ours = consumers.c.table_id == sa.bindparam("table")
    return sa.select(consumers.c.name).where(is_ours, is_alive, consumers.c.session != GONE)


@built_once(maxsize=1)
def _counting() -> sa.Select[Any]:
    who = sa.bindparam("who", type_=groups.c.assigned.type)
    chosen = sa.select(groups.c.group_id).where(groups.c.table_id == sa.bindparam("table"))
    owned, coming = (
        chosen.where(which).limit(sa.bindparam("most")).subquery() for which in (belongs_to(who), drains_to(who))
    )
    owned, coming = (sa.select(sa.func.count()).select_from(some).scalar_subquery() for some in (owned, coming))
    return sa.select(owned + coming)


@built_once(maxsize=1)
def _idle_beside() -> sa.Select[Any, Any]:
    # By the index of groups with messages, consumer by consumer: a planner would otherwise join all groups.
    something = (
        sa.select(groups.c.priority)
        .where(
            groups.c.table_id == consumers.c.table_id,
            groups.c.assigned == consumers.c.name,
            groups.c.ready_at.is_not(None),
        )
        .order_by(groups.c.priority)
        .limit(1)
        .correlate(consumers)
        .scalar_subquery()
    )
    return sa.select(consumers.c.name, consumers.c.max_groups.label("max_groups")).where(
        consumers.c.table_id == sa.bindparam("table"),
        consumers.c.name != sa.bindparam("who"),
        consumers.c.lease_until > sa.bindparam("now", type_=sa.BigInteger),
        consumers.c.session != GONE,
        something.is_(None),
    )


@built_once(maxsize=1)
def _due_for_any() -> sa.Select[Any]:
    found = (
        sa.select(groups.c.ready_at)
        .where(
            groups.c.table_id == sa.bindparam("table"), groups.c.assigned == UNASSIGNED, groups.c.ready_at.is_not(None)
        )
        .order_by(groups.c.priority)
        .limit(sa.bindparam("enough", type_=sa.Integer))
        .subquery()
    )
    due = found.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(sa.func.count().label("shared")).select_from(found).where(due)


@built_once(maxsize=256)
def _replacing_first(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(had_first=sa.bindparam("first", type_=sa.BigInteger))


def _one(context: TableContext, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return consumers.c.table_id == context.table_id, consumers.c.name == name


def locking(context: TableContext, name: str) -> Asked:
    """Return the statement that locks a consumer's row."""
    return _KNOWN, {"table": context.table_id, "who": name}


_NAMED = consumers.c.table_id == sa.bindparam("table"), consumers.c.name == sa.bindparam("who")
_VALUES = {"session": sa.bindparam("process"), "lease_until": sa.bindparam("until"), "max_groups": sa.bindparam("most")}
_KNOWN = (
    sa.select(consumers.c.session, consumers.c.lease_until, consumers.c.max_groups).where(*_NAMED).with_for_update()
)
_JOINING = sa.insert(consumers).values(table_id=sa.bindparam("table"), name=sa.bindparam("who"), **_VALUES)
_RENEWING = sa.update(consumers).where(*_NAMED).values(_VALUES)
_LEAVING_LATER = (
    sa.update(consumers).where(*_NAMED).values(session=sa.bindparam("process"), lease_until=sa.bindparam("until"))
)


def _lasting(named: sa.ColumnElement[bool]) -> sa.Update:
    until = sa.bindparam("until", type_=sa.BigInteger)
    its = consumers.c.table_id == sa.bindparam("table")
    mine = consumers.c.session == sa.bindparam("process", type_=sa.BigInteger)
    return sa.update(consumers).where(its, named, mine, consumers.c.lease_until < until).values(lease_until=until)


_LIVING = _lasting(consumers.c.name == sa.bindparam("who"))
_LIVING_TOGETHER = _lasting(consumers.c.name.in_(sa.bindparam("names", expanding=True)))


def _is_over(now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    slot = now.bitwise_rshift(sa.literal_column(str(LEASE_SLOT_BITS)))
    return (consumers.c.lease_slot <= slot) & (consumers.c.lease_until <= now)


_LAPSED = (
    sa.select(consumers.c.name)
    .where(consumers.c.table_id == sa.bindparam("table"), _is_over(sa.bindparam("now", type_=sa.BigInteger)))
    .order_by(consumers.c.lease_slot)
    .limit(3)
    .with_for_update(skip_locked=True)
)


def _has_to_go(context: TableContext) -> tuple[sa.ColumnElement[bool], ...]:
    """Select the groups that a consumer's end affects: all unpinned ones, and pinned ones with leased messages."""
    out = has_something_out(context)
    its = groups.c.table_id == sa.bindparam("table"), belongs_to(sa.bindparam("who"))
    return *its, sa.or_(groups.c.pinned == 0, out)


@built_once(maxsize=256)
def _assigned(context: TableContext, *, begins: bool = True) -> sa.Select[Any]:
    behind = sa.true() if begins else groups.c.group_id > sa.bindparam("after", type_=groups.c.group_id.type)
    return (
        sa.select(groups.c.group_id)
        .where(*_has_to_go(context), behind)
        # In index order; otherwise all are read and sorted for each thousand. Waits for no lock.
        .order_by(groups.c.group_id)
        .limit(_RELEASED_AT_ONCE)
        .with_for_update(skip_locked=True, of=groups)
    )


@built_once(maxsize=256)
def _any_assigned(context: TableContext) -> sa.Select[Any]:
    return sa.select(groups.c.group_id).where(*_has_to_go(context)).limit(1)


_IDLE = (
    sa.select(groups.c.group_id)
    .where(
        groups.c.table_id == sa.bindparam("table"),
        groups.c.idle_since <= sa.bindparam("before", type_=sa.BigInteger),
        groups.c.pinned == 0,
    )
    .order_by(groups.c.idle_since)  # in index order, as above
    .limit(_RELEASED_AT_ONCE)
    .with_for_update(skip_locked=True)
)


@built_once(maxsize=256)
def _releasing(context: TableContext) -> sa.Update:
    # A pinned group stays, or goes to the consumer to which it was pinned meanwhile.
    pinned = groups.c.pinned == 1
    return (
        sa.update(groups)
        .where(these_groups(context))
        .values(
            assigned=sa.case((pinned, groups.c.assigned), else_=UNASSIGNED),
            drain_to=sa.case((pinned, groups.c.drain_to), else_=None),
        )
    )


@built_once(maxsize=256)
def _taking_back(context: TableContext) -> sa.Update:
    now = sa.bindparam("now", type_=sa.BigInteger)
    taking = sa.update(context.rows).where(context.unacked()).values(time_next=now, claim_id=None)
    return taking if context.options.max_attempts is None else taking.values(epoch=epoch_begun(context))
