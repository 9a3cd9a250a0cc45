"""Saying why a message is not out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from waterclock.errors import NotFoundError
from waterclock.tables.context import TableContext
from waterclock.tables.grouping import UNGROUPED
from waterclock.time import format_time

State = Literal["acked", "in_flight", "scheduled", "delayed", "held", "ready"]
"""What becomes of a message: ``held`` means that an earlier one of its group comes first."""


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
    if facts.time_next > now:
        sent = f"was sent {facts.epoch} times and backs off" if facts.epoch else "is scheduled"
        return Explanation(facts.id, "delayed" if facts.epoch else "scheduled", f"{sent} until {when}", facts.time_next)
    return Explanation(facts.id, "ready", f"is ready since {when}; any consumer that asks gets it", facts.time_next)


def explain_message(context: TableContext, connection: sa.Connection, message_id: Any) -> Explanation:
    """Look up the facts of a message, and judge it; NotFoundError where there is none with this id."""
    rows = context.rows
    row = connection.execute(sa.select(rows).where(rows.c.id == message_id)).first()
    if row is None:
        raise NotFoundError(f"message {message_id!r} is not in {context.name!r}: it never was, or it was purged")
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
    )
    return explain_facts(facts, context.backend.now(connection))


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
