"""Saying why a message is not out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from waterclock.errors import NotFoundError
from waterclock.quoting import quoted
from waterclock.tables.claiming.limiting import rate_free_at
from waterclock.tables.context import TableContext
from waterclock.tables.dead_letters import DIED, REASON
from waterclock.tables.groups.group_info import GroupInfo, list_groups
from waterclock.tables.groups.grouping import UNGROUPED
from waterclock.time import MAX_NS, format_time

State = Literal["acked", "in_flight", "scheduled", "delayed", "held", "ready", "paused", "rate", "dead", "exhausted"]
"""What becomes of a message: ``held`` means that an earlier one of its group comes first, ``paused`` that the
table or its group sends nothing, ``rate`` that the table has sent as many as its ``rate_limit`` allows, ``exhausted``
that it has used up its attempts and holds up its group."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message is not out.

    Attributes
    ----------
    id
        Which message.
    state
        In a word.
    reason
        In a sentence.
    due_at
        When it can be sent at the earliest, ns; None where that is not a matter of time.
    consumer
        Who has the message, or had it last.
    blocking_id
        The message of its group that has to be acked first.
    """

    id: Any
    state: State
    reason: str
    due_at: int | None = None
    consumer: str | None = None
    blocking_id: Any = None

    def __str__(self) -> str:
        return f"message {self.id!r} {self.reason}"


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What decides on a message; times in ns, as in its row."""

    id: Any
    time_next: int
    epoch: int
    time_acked: int | None
    group_id: str | None
    consumer: str | None
    leased: bool
    blocking_id: Any
    paused_until: int | None = None
    rate_free_at: int | None = None


def explain_facts(facts: MessageFacts, now: int) -> Explanation:
    """Judge a message by its facts at ``now``, ns."""
    if facts.time_acked is not None:
        return Explanation(facts.id, "acked", f"was acked at {format_time(facts.time_acked)}", consumer=facts.consumer)
    when = format_time(facts.time_next)
    if facts.leased and facts.time_next > now:
        who = facts.consumer or "a consumer without a name"
        return Explanation(
            facts.id, "in_flight", f"is with {who}, whose lease lasts until {when}", facts.time_next, facts.consumer
        )
    if facts.blocking_id is not None:
        group = f"group {facts.group_id!r}" if facts.group_id else "the group of messages that name none"
        return Explanation(
            facts.id,
            "held",
            f"waits for message {facts.blocking_id!r}, which is before it in {group}",
            blocking_id=facts.blocking_id,
        )
    return _explain_alone(facts, now)


def _explain_alone(facts: MessageFacts, now: int) -> Explanation:
    """Judge a message that is with nobody and waits for no other."""
    when = format_time(facts.time_next)
    if facts.time_next > now:
        sent = f"was sent {facts.epoch} times and backs off" if facts.epoch else "is scheduled"
        return Explanation(facts.id, "delayed" if facts.epoch else "scheduled", f"{sent} until {when}", facts.time_next)
    if facts.paused_until is not None and facts.paused_until > now:
        paused = "until it is resumed" if facts.paused_until == MAX_NS else f"until {format_time(facts.paused_until)}"
        until = None if facts.paused_until == MAX_NS else facts.paused_until
        return Explanation(facts.id, "paused", f"is due, but its table is paused {paused}", until)
    if facts.rate_free_at is not None and facts.rate_free_at > now:
        free_at = format_time(facts.rate_free_at)
        return Explanation(
            facts.id, "rate", f"is due, but the table's rate_limit sends nothing until {free_at}", facts.rate_free_at
        )
    return Explanation(facts.id, "ready", f"is ready since {when}; any consumer that asks gets it", facts.time_next)


def explain_message(context: TableContext, connection: sa.Connection, message_id: Any) -> Explanation:
    """Look up the facts of a message, and judge it; NotFoundError where there is none with this id."""
    rows = context.rows
    row = connection.execute(sa.select(rows).where(rows.c.id == message_id)).first()
    if row is None:
        dead = _dead_letter(context, connection, message_id)
        if dead is not None:
            return dead
        raise NotFoundError(f"message {quoted(message_id)} is not in {context.name!r}: it never was, or it was purged")
    due = next(time for time in (row.time_next, row.time_scheduled, 0) if time is not None)
    facts = MessageFacts(
        id=row.id,
        time_next=due,
        epoch=row.epoch or 0,
        time_acked=row.time_acked,
        group_id=row.group_id,
        consumer=row.consumer,
        leased=row.lease is not None,
        blocking_id=_blocking_id(context, connection, row) if context.options.groups else None,
        paused_until=context.paused_until,
        rate_free_at=rate_free_at(context, connection),
    )
    now = context.backend.now(connection)
    explanation = explain_facts(facts, now)
    if row.held_at is not None and row.time_acked is None:
        why = "was acked, which counts once the messages before it in its group are"
        return Explanation(row.id, "held", why, blocking_id=facts.blocking_id)
    if context.options.groups and facts.blocking_id is None and explanation.state in ("ready", "delayed", "scheduled"):
        return _explain_head(explanation, list_groups(context, connection, [row.group_id or UNGROUPED]), now)
    return explanation


def _explain_head(explanation: Explanation, found: list[GroupInfo], now: int) -> Explanation:
    """Say what its group holds the first message up for."""
    if not found or found[0].head_id != explanation.id:
        return explanation
    [info] = found
    if info.paused_until is not None and info.paused_until > now:
        until = None if info.paused_until == MAX_NS else info.paused_until
        return Explanation(explanation.id, "paused", f"waits, because of its group: {info.blocked_by}", until)
    if info.due_at is None:
        return Explanation(explanation.id, "exhausted", f"holds up its group: {info.blocked_by}")
    if info.owner is not None and explanation.state == "ready":
        return replace(
            explanation, reason=f"is ready since {format_time(explanation.due_at or 0)}, for {info.owner} alone"
        )
    return explanation


def _dead_letter(context: TableContext, connection: sa.Connection, message_id: Any) -> Explanation | None:
    if context.dead is None:
        return None
    graves = context.dead.rows
    row = connection.execute(
        sa.select(graves.c.id, graves.c[REASON], graves.c[DIED]).where(graves.c.id == message_id)
    ).first()
    if row is None:
        return None
    when = format_time(getattr(row, DIED))
    return Explanation(row.id, "dead", f"died at {when}, {getattr(row, REASON)}; it is in {context.dead.name!r}")


def _blocking_id(context: TableContext, connection: sa.Connection, row: sa.Row[Any]) -> Any:
    rows = context.rows
    # A message that no consumer has routed yet comes after all of its group that are.
    earlier = rows.c.position < row.position if row.position is not None else rows.c.seq < row.seq
    group = sa.func.coalesce(rows.c.group_id, UNGROUPED) == (row.group_id or UNGROUPED)
    return connection.execute(
        sa.select(rows.c.id)
        .where(group, earlier, rows.c.time_acked.is_(None))
        .order_by(rows.c.position, rows.c.seq)
        .limit(1)
    ).scalar()
