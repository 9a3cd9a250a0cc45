"""Inspects groups: their consumers, how many messages wait, and why they are blocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.rate_limit import rate_free_at
from waterclock.tables.groups.consumers import living_consumers
from waterclock.tables.groups.group_state import UNGROUPED, lock_free_groups, lock_out, these_groups
from waterclock.tables.groups.routing import group_of
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.row_conditions import CANCELLED, not_acked
from waterclock.tables.model.states import (
    GROUP_REASONS,
    HOLD_REASONS,
    GroupFacts,
    GroupState,
    Hold,
    MessageColumns,
    MessageState,
    state_of,
    state_of_group,
)
from waterclock.time import MAX_NS, format_time


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The current state of a group. Times in ns.

    Attributes
    ----------
    group
        Its name; None: the group of messages without one.
    owner
        The only consumer that may have it, or the one that has its first message now; None: none.
    pinned
        Whether it is pinned to its owner.
    in_flight, waiting, held
        How many messages are leased, how many wait, and how many are handled but acked only after those before them.
    head_id, head_age, head_attempts
        Its first message: the id, for how long it has been due (ns), and how often it was sent. None and 0 without one.
    due_at
        When it may be handed out next, or its lease ends; None: only after a change.
    paused_until
        When its pause ends; None: not paused. A pause without an end has the largest time.
    blocked_by
        Why its next message is not sent, as text; None: it is available to any consumer that may have it.
    state
        Its state.
    hold
        The reason why its next message, though due, is not sent; None without one.
    """

    group: str | None
    owner: str | None
    pinned: bool
    in_flight: int
    waiting: int
    held: int
    head_id: Any
    head_age: int | None
    head_attempts: int
    due_at: int | None
    paused_until: int | None
    blocked_by: str | None
    state: GroupState
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A message that decides on its group's state, from its row."""

    id: Any
    epoch: int
    time_scheduled: int
    time_next: int
    consumer: str | None
    leased: bool
    expires_at: int | None

    def state(self, now: int, most: int | None) -> MessageState:
        """Return its state at ``now``, ns; ``most`` is the maximum number of attempts."""
        cancelled = self.expires_at == CANCELLED
        columns = MessageColumns(
            None, None, self.leased, self.time_next, self.epoch, self.expires_at, cancelled=cancelled
        )
        return state_of(columns, now, most=most)


@dataclass(frozen=True, slots=True)
class Members:
    """The messages that decide on a group's state."""

    head: Member | None  # the first one that is not acked; None: no message has been routed yet
    next: Member | None  # the next one that may be handed out; None if others must be acked before


def blocked_by(state: GroupState, members: Members, paused_until: int | None, drain_to: str | None) -> str | None:
    """Return the reason why the next message of a group in this state is not sent."""
    shown = members.head if state in ("leased", "draining") else members.next
    if shown is None or state not in GROUP_REASONS:
        return None
    return GROUP_REASONS[state].format(
        id=repr(shown.id),
        epoch=shown.epoch,
        verb="backs off" if shown.epoch else "is scheduled",
        when=format_time(shown.time_next),
        who=shown.consumer or "a consumer without a name",
        where=f"to {drain_to}" if drain_to else "to the next consumer that claims",
        until="" if paused_until is None or paused_until == MAX_NS else f" until {format_time(paused_until)}",
    )


def first_names(context: TableContext, connection: sa.Connection, limit: int, most_new: int | None = None) -> list[str]:
    """Return the names of the first groups in the database's order.

    Parameters
    ----------
    most_new
        How many messages that are not routed yet are read for the names of their groups, which no index has in order;
        None: all of them.
    """
    rows = context.rows
    # Routed messages have their group in the catalogue, too.
    routed = sa.select(groups.c.group_id.label("name")).where(_which(context, named=False))
    name = group_of(rows)
    new = context.sql.by_index(sa.select(name.label("name")), rows, "unrouted").where(*_unrouted(context))
    if context.options.ungrouped == "free":
        new = new.where(name != UNGROUPED)
    if most_new is not None:
        some = new.order_by(*context.sql.routing_order(rows)).limit(most_new).subquery()
        new = sa.select(some.c.name)
    new = new.distinct()
    first = [each.order_by("name").limit(limit).subquery() for each in (routed, new)]
    every = sa.union(*(sa.select(each.c.name) for each in first)).subquery()
    return list(connection.scalars(sa.select(every.c.name).order_by(every.c.name).limit(limit)))


def has_more_new(context: TableContext, connection: sa.Connection, most: int) -> bool:
    """Return whether more than so many messages are not routed yet."""
    some = sa.select(sa.literal(1).label("one")).where(*_unrouted(context)).limit(most + 1).subquery()
    return connection.scalar(sa.select(sa.func.count()).select_from(some)) == most + 1


def _unrouted(context: TableContext) -> tuple[sa.ColumnElement[bool], ...]:
    # With their order, and not by the index of groups, so that the index of these is taken.
    rows = context.rows
    return context.sql.is_unrouted(rows), context.sql.routing_place(rows) > 0, not_acked(rows)


def list_groups(
    context: TableContext, connection: sa.Connection, names: Sequence[str] | None = None
) -> list[GroupInfo]:
    """Return these groups, or all in the order of their names."""
    now = context.backend.now(connection)
    chosen: dict[str, Any] = {} if names is None else {"groups": list(names)}
    named = names is not None
    counting = _counts(context, named=named, also_ungrouped=UNGROUPED in chosen.get("groups", ()))
    counts = {row.group: row for row in connection.execute(counting, {"now": now, **chosen})}
    found = {row.group_id: row for row in connection.execute(_rows(context, named=named), chosen)}

    def members_at(place: sa.Column[int]) -> dict[str, Member]:
        first = connection.execute(_members_at(context, place, named=named), chosen)
        return {row.group_id: _member(row) for row in first}

    living: set[str] = set()
    if context.options.groups == "exclusive":
        living = living_consumers(context, connection, now)
    heads = members_at(groups.c.head)
    later = members_at(groups.c.next_position) if context.options.groups == "exclusive" else {}
    there = counts.keys() | found.keys()
    listed = sorted(there) if names is None else [name for name in names if name in there]
    table_hold = held_by_table(context, connection, now)
    infos: list[GroupInfo] = []
    for name in listed:
        head = heads.get(name)
        is_out = head is not None and head.leased and head.time_next > now
        members = Members(head, later.get(name) if is_out else head)
        info = _info(context, name, found.get(name), members, counts.get(name), now)
        if info.state in ("ready", "unrouted"):
            info = (
                _with_hold(info, found.get(name), living, now)
                if table_hold is None
                else _with_table_hold(info, table_hold)
            )
        infos.append(info)
    return infos


class TableHold(NamedTuple):
    """The reason why no message of a table is sent: code, text, and until when, ns."""

    hold: Hold
    reason: str
    until: int


def held_by_table(context: TableContext, connection: sa.Connection, now: int) -> TableHold | None:
    """Return the reason if a table is paused or has used up its rate; None otherwise."""
    paused_until = context.paused_until
    if paused_until is not None and paused_until > now:
        return TableHold("paused", paused("its table", paused_until), paused_until)
    free_at = rate_free_at(context, connection)
    if free_at is not None and free_at > now:
        return TableHold("rate", HOLD_REASONS["rate"].format(when=format_time(free_at)), free_at)
    return None


def paused(what: str, until: int) -> str:
    """Describe a pause that ends then, ns."""
    words = " until it is resumed" if until == MAX_NS else f" until {format_time(until)}"
    return HOLD_REASONS["paused"].format(what=what, until=words)


def _with_table_hold(info: GroupInfo, held: TableHold) -> GroupInfo:
    due_at = None if held.until == MAX_NS else max(info.due_at or 0, held.until)
    return replace(info, hold=held.hold, blocked_by=held.reason, due_at=due_at)


def _with_hold(info: GroupInfo, row: sa.Row[*tuple[Any, ...]] | None, living: set[str], now: int) -> GroupInfo:
    """Return the reason why a ready group is not sent."""
    if row is not None and row.assigned not in (UNASSIGNED, *living):
        then = "the group is pinned to it" if row.pinned else "the next consumer that claims takes it over"
        reason = HOLD_REASONS["owner_away"].format(who=row.assigned, then=then)
        return replace(info, hold="owner_away", blocked_by=reason)
    is_late = row is not None and info.state == "ready" and (row.ready_at is None or row.ready_at > now)
    if is_late or (row is not None and row.head is not None and info.head_id is None):
        return replace(info, hold="unsettled", blocked_by=HOLD_REASONS["unsettled"])
    return info


def seen_locked(context: TableContext, info: GroupInfo) -> GroupInfo:
    """Report if a ready or new group cannot be claimed because it, or a message of it, is locked now.

    For a moment it locks the free rows that a consumer would lock.
    """
    may_go = info.hold is None or (info.hold == "owner_away" and not info.pinned)
    if not may_go or info.state not in ("ready", "unrouted") or context.sql.one_writer:
        return info
    name = info.group or UNGROUPED
    are_free = _is_first_new_free if info.state == "unrouted" else _are_free
    try:
        free = context.backend.transact(lambda own: are_free(context, own, name))
    except WaterclockError:  # the caller may have read privileges only
        return info
    if free:
        return info
    with context.backend.snapshot() as connection:
        there = connection.execute(_rows_of(context, name).limit(1)).first()
    return replace(info, hold="locked", blocked_by=locked("its group")) if there is not None else info


def locked(what: str) -> str:
    """Describe a lock by another transaction."""
    return HOLD_REASONS["locked"].format(what=what)


def _are_free(context: TableContext, own: SqlConnection, name: str) -> bool:
    """Return whether a group, its leased messages and its next message are unlocked."""
    if not lock_free_groups(context, own, [name]) or not lock_out(context, own, [name]).names:
        return False
    rows = context.rows
    is_next = (
        (rows.c.group_id == groups.c.group_id)
        & (rows.c.position == groups.c.next_position)
        & rows.c.time_acked.is_(None)
    )
    its, which = (groups, [rows.c.seq], is_next, rows.c.position), these_groups(context)
    searches = [context.sql.of_each(*its, which, skip_locked=skips) for skips in (False, True)]
    seen, unlocked = (set(own.scalars(search, {"groups": [name]})) for search in searches)
    return seen <= unlocked


def _is_first_new_free(context: TableContext, own: SqlConnection, name: str) -> bool:
    """Return whether a group without routed messages, and its first message, are unlocked."""
    rows = context.rows
    has_row = own.execute(sa.select(groups.c.group_id).where(these_groups(context)), {"groups": [name]}).first()
    if has_row is not None and not lock_free_groups(context, own, [name]):
        return False
    its = _rows_of(context, name).where(rows.c.position.is_(None))
    first = own.execute(its.order_by(rows.c.seq).limit(1)).first()
    if first is None:
        return True
    return own.execute(its.where(rows.c.seq == first.seq).with_for_update(skip_locked=True)).first() is not None


def _rows_of(context: TableContext, name: str) -> sa.Select[Any]:
    """Select the unacked messages of a group."""
    rows = context.rows
    its = (
        sa.or_(rows.c.group_id.is_(None), rows.c.group_id == UNGROUPED)
        if name == UNGROUPED
        else rows.c.group_id == name
    )
    return sa.select(rows.c.seq).where(its, rows.c.time_acked.is_(None))


@built_once(maxsize=256)
def _rows(context: TableContext, *, named: bool) -> sa.Select[*tuple[Any, ...]]:
    return sa.select(groups).where(_which(context, named=named))


@built_once(maxsize=256)
def _members_at(context: TableContext, place: sa.Column[int], *, named: bool) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    names = ("group_id", "id", "epoch", "time_scheduled", "time_next", "consumer", "claim_id", "expires_at")
    at_place = (rows.c.group_id == groups.c.group_id) & (rows.c.position == place) & rows.c.time_acked.is_(None)
    which = _which(context, named=named)
    return context.sql.of_each(groups, [rows.c[name] for name in names], at_place, rows.c.position, which)


def _which(context: TableContext, *, named: bool) -> sa.ColumnElement[bool]:
    its = these_groups(context) if named else context.sql.of_table(groups.c.table_id, context.table_id)
    return its & groups.c.ended_at.is_(None) if context.sql.keeps_ended else its


def _member(row: sa.Row[*tuple[Any, ...]]) -> Member:
    return Member(
        row.id,
        row.epoch or 0,
        row.time_scheduled or 0,
        row.time_next or 0,
        row.consumer,
        row.claim_id is not None,
        row.expires_at,
    )


@built_once(maxsize=256)
def _counts(context: TableContext, *, named: bool, also_ungrouped: bool) -> sa.Select[Any, Any, Any, Any]:
    rows = context.rows
    name = group_of(rows)
    out = rows.c.claim_id.is_not(None) & (rows.c.time_next > sa.bindparam("now", type_=sa.BigInteger))
    held = rows.c.ack_held_at.is_not(None)
    statement = (
        sa.select(
            name.label("group"),
            sa.func.count(sa.case((out, 1))).label("in_flight"),
            sa.func.count(sa.case((held, 1))).label("held"),
            sa.func.count().label("messages"),
        )
        .where(rows.c.time_acked.is_(None))
        .group_by(name)
    )
    if context.options.ungrouped == "free":
        statement = statement.where(name != UNGROUPED)
    if not named:
        return statement
    these = context.sql.any_of(rows.c.group_id, "groups")
    return statement.where(these | rows.c.group_id.is_(None) if also_ungrouped else these)


def _info(
    context: TableContext,
    name: str,
    row: sa.Row[*tuple[Any, ...]] | None,
    members: Members,
    counts: sa.Row[*tuple[Any, ...]] | None,
    now: int,
) -> GroupInfo:
    in_flight, held, messages = (counts.in_flight, counts.held, counts.messages) if counts else (0, 0, 0)
    head = members.head
    owner = None if row is None or row.assigned == UNASSIGNED else row.assigned
    if owner is None and head is not None and head.leased and head.time_next > now:
        owner = head.consumer
    paused_until = None if row is None else row.paused_until
    drain_to = None if row is None else row.drain_to
    next_state = None if members.next is None else members.next.state(now, context.options.blocking_attempts)
    facts = GroupFacts(messages, head is not None, next_state, drain_to is not None, paused_until)
    state = state_of_group(facts, now)
    return GroupInfo(
        group=name or None,
        owner=owner,
        pinned=row is not None and bool(row.pinned),
        in_flight=in_flight,
        waiting=messages - in_flight - held,
        held=held,
        head_id=None if head is None else head.id,
        head_age=None if head is None else max(0, now - head.time_scheduled),
        head_attempts=0 if head is None else head.epoch,
        due_at=None if row is None else row.ready_at,
        paused_until=paused_until,
        blocked_by=blocked_by(state, members, paused_until, drain_to),
        state=state,
    )
