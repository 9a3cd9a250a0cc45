"""Looking at groups: who has them, how many messages wait, and what holds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.table_catalogue import groups
from waterclock.tables.context import TableContext
from waterclock.tables.groups.grouping import ANYBODY, UNGROUPED, these_groups
from waterclock.tables.groups.routing import group_of, is_unrouted
from waterclock.time import MAX_NS, format_time


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it is now. Times in ns.

    Attributes
    ----------
    group
        Its name; None: that of the messages that name none.
    owner
        Who alone may have it, or else who has its first message just now; None: nobody.
    pinned
        Whether it was given to its owner by hand.
    in_flight, waiting, held
        How many messages are with the owner, how many are to come, and how many are handled but acked only after
        those before them.
    head_id, head_age, head_attempts
        Its first message: which, since when it has been due (ns), and how often it was sent. None and 0 without one.
    due_at
        When it may be handed out next, or its lease ends; None: never by itself.
    paused_until
        None where it is not paused; a time without end where nobody said until when.
    blocked_by
        Why its next message is not out, in words; None: nothing, any consumer that asks and may have it gets it.
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


@dataclass(frozen=True, slots=True)
class Head:
    """The first message of a group, as its row has it."""

    id: Any
    epoch: int
    time_scheduled: int
    time_next: int
    consumer: str | None
    leased: bool


def blocked_by(
    *, head: Head | None, waiting: int, paused_until: int | None, max_attempts: int | None, exclusive: bool, now: int
) -> str | None:
    """Say in words why a group's next message is not out at ``now``, ns."""
    if head is None:
        return None
    paused = paused_until is not None and paused_until > now
    if head.leased and head.time_next > now:
        if not (exclusive and waiting):
            who = head.consumer or "a consumer without a name"
            return f"message {head.id!r} is with {who} until {format_time(head.time_next)}"
    elif max_attempts is not None and head.epoch >= max_attempts:
        return f"message {head.id!r} was sent {head.epoch} times, which is all it may be; skip it, or reschedule it"
    elif head.time_next > now and not paused:
        verb = "backs off" if head.epoch else "is scheduled"
        return f"message {head.id!r} {verb} until {format_time(head.time_next)}"
    if paused:
        return "it is paused" + ("" if paused_until == MAX_NS else f" until {format_time(paused_until or 0)}")
    return None


def first_names(context: TableContext, connection: sa.Connection, limit: int) -> list[str]:
    """Give the names of groups that come first where the database sorts them."""
    rows = context.rows
    # A message that has its place in its group has it in the catalogue, too.
    routed = sa.select(groups.c.group_id.label("name")).where(groups.c.table_id == context.table_id)
    name = group_of(rows)
    new = sa.select(name.label("name")).distinct().where(is_unrouted(rows), rows.c.time_acked.is_(None))
    if context.options.ungrouped == "free":
        new = new.where(name != UNGROUPED)
    first = [each.order_by("name").limit(limit).subquery() for each in (routed, new)]
    every = sa.union(*(sa.select(each.c.name) for each in first)).subquery()
    return list(connection.scalars(sa.select(every.c.name).order_by(every.c.name).limit(limit)))


def list_groups(
    context: TableContext, connection: sa.Connection, names: Sequence[str] | None = None
) -> list[GroupInfo]:
    """Look at groups: at some, or at all in the order of their names."""
    rows = context.rows
    now = context.backend.now(connection)
    chosen: dict[str, Any] = {} if names is None else {"groups": list(names)}
    which = groups.c.table_id == context.table_id if names is None else these_groups(context)
    counts = {row.group: row for row in connection.execute(_counts(context, names), {"now": now, **chosen})}
    at_head = (rows.c.group_id == groups.c.group_id) & (rows.c.position == groups.c.head) & rows.c.time_acked.is_(None)
    columns = ("group_id", "id", "epoch", "time_scheduled", "time_next", "consumer", "lease")
    found = {row.group_id: row for row in connection.execute(sa.select(groups).where(which), chosen)}
    first = context.sql.of_each(groups, [rows.c[name] for name in columns], at_head, rows.c.position).where(which)
    heads = {row.group_id: _head(row) for row in connection.execute(first, chosen)}
    there = counts.keys() | found.keys()
    listed = sorted(there) if names is None else [name for name in names if name in there]
    return [_info(context, name, found.get(name), heads.get(name), counts.get(name), now) for name in listed]


def _head(row: sa.Row[*tuple[Any, ...]]) -> Head:
    return Head(
        row.id, row.epoch or 0, row.time_scheduled or 0, row.time_next or 0, row.consumer, row.lease is not None
    )


def _counts(context: TableContext, names: Sequence[str] | None) -> sa.Select[Any, Any, Any, Any]:
    rows = context.rows
    name = group_of(rows)
    out = rows.c.lease.is_not(None) & (rows.c.time_next > sa.bindparam("now", type_=sa.BigInteger))
    held = rows.c.held_at.is_not(None)
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
    if names is None:
        return statement
    these = context.sql.any_of(rows.c.group_id, "groups")
    return statement.where(these | rows.c.group_id.is_(None) if UNGROUPED in names else these)


def _info(
    context: TableContext,
    name: str,
    row: sa.Row[*tuple[Any, ...]] | None,
    head: Head | None,
    counts: sa.Row[*tuple[Any, ...]] | None,
    now: int,
) -> GroupInfo:
    in_flight, held, messages = (counts.in_flight, counts.held, counts.messages) if counts else (0, 0, 0)
    waiting = messages - in_flight - held
    owner = None if row is None or row.assigned == ANYBODY else row.assigned
    if owner is None and head is not None and head.leased and head.time_next > now:
        owner = head.consumer
    paused_until = None if row is None else row.paused_until
    return GroupInfo(
        group=name or None,
        owner=owner,
        pinned=row is not None and bool(row.pinned),
        in_flight=in_flight,
        waiting=waiting,
        held=held,
        head_id=None if head is None else head.id,
        head_age=None if head is None else max(0, now - head.time_scheduled),
        head_attempts=0 if head is None else head.epoch,
        due_at=None if row is None else row.ready_at,
        paused_until=paused_until,
        blocked_by=blocked_by(
            head=head,
            waiting=waiting,
            paused_until=paused_until,
            max_attempts=context.options.max_attempts,
            exclusive=context.options.groups == "exclusive",
            now=now,
        ),
    )
