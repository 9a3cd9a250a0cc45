"""Explains why a message is not sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.errors import NotFoundError, SchemaError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import UNGROUPED, is_out
from waterclock.tables.groups.info import GroupInfo, TableHold, held_by_table, list_groups, locked, paused, seen_locked
from waterclock.tables.keys.key_limits import in_flight
from waterclock.tables.keys.key_rates import key_free_at
from waterclock.tables.messages.finishing.dead_letters import dead_letter_table
from waterclock.tables.messages.rows.process_heartbeat import everywhere
from waterclock.tables.model.attempts import Attempt, read_attempts
from waterclock.tables.model.row_conditions import CANCELLED, EXPIRED, is_expired, not_acked
from waterclock.tables.model.schema import DIED, MESSAGE_KEY, REASON
from waterclock.tables.model.states import (
    HOLD_REASONS,
    MESSAGE_REASONS,
    GroupState,
    Hold,
    MessageColumns,
    MessageState,
    state_of,
)
from waterclock.time import MAX_NS, format_time

State = MessageState | Hold  # the state of a message, or the reason why it is not sent although it is ready


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message is not sent."""

    id: Any  # id of the message
    state: State  # its state, as a code
    reason: str  # the reason, as a sentence
    due_at: int | None = None  # the earliest time at which it can be sent, ns; None if it waits for something else
    consumer: str | None = None  # the consumer that has the message, or had it last
    blocking_id: Any = None  # the message of its group that must be acked first
    attempts: Sequence[Attempt] = ()  # its attempts that failed, oldest first: the last ``attempts_kept`` of them

    def __str__(self) -> str:
        return f"message {self.id!r} {self.reason}"


def explain_message(context: TableContext, connection: sa.Connection, message_id: Any) -> Explanation:
    """Explain a message; NotFoundError if it is missing."""
    rows = context.rows
    row = connection.execute(sa.select(rows).where(rows.c.id == message_id)).first()
    if row is None:
        dead = _dead_letter(context, connection, message_id)
        if dead is not None:
            return dead
        raise NotFoundError(
            f"no message with id {quoted(message_id)} in table {context.name!r}: it was never put, or was purged"
        )
    now = context.backend.now(connection)
    due = next(time for time in (row.time_next, row.time_scheduled, 0) if time is not None)
    columns = MessageColumns(
        row.time_acked,
        row.ack_held_at,
        row.claim_id is not None,
        due,
        row.epoch or 0,
        row.expires_at,
        dropped=row.time_acked is not None and row.acked_by == EXPIRED,
        cancelled=row.expires_at == CANCELLED,
    )
    if context.options.groups is None or (context.options.ungrouped == "free" and not row.group_id):
        explanation = _explain_ready(context, connection, _explain(row, columns, state_of(columns, now)), None, now)
        return _explain_unburied(context, columns, _explain_locked(context, explanation))
    found = list_groups(context, connection, [row.group_id or UNGROUPED])
    group = seen_locked(context, found[0]) if found else None
    blocking = _blocking_id(context, connection, row, None if group is None else group.state)
    most = context.options.blocking_attempts
    state = state_of(columns, now, blocked=blocking is not None, most=most)
    explanation = _explain_ready(context, connection, _explain(row, columns, state, group, blocking), group, now)
    return _explain_unburied(context, columns, explanation)


def _explain_locked(context: TableContext, explanation: Explanation) -> Explanation:
    """Report if a ready message cannot be claimed because another transaction has locked it.

    It locks the message for a moment if it is free.
    """
    if explanation.state != "ready" or context.sql.one_writer:
        return explanation
    rows = context.rows
    its = sa.select(rows.c.seq).where(rows.c.id == explanation.id, not_acked(rows))
    free = its.with_for_update(skip_locked=True)
    try:
        is_free = context.backend.transact(lambda own: own.execute(free).first() is not None)
    except WaterclockError:  # the caller may have read privileges only
        return explanation
    with context.backend.snapshot() as later:
        if is_free or later.execute(its).first() is None:
            return explanation
    return replace(explanation, state="locked", reason=f"is due, but {locked('it')}")


def _explain_unburied(context: TableContext, columns: MessageColumns, explanation: Explanation) -> Explanation:
    """Report if a message stays only because its dead-letter table is missing."""
    options = context.options
    belongs = {
        "expired": options.on_expired == "dead_letter",
        "ready": options.max_attempts is not None and columns.epoch >= options.max_attempts,
    }
    is_there = context.dead is not None or options.dead_letter is None
    if is_there or columns.time_acked is not None or not belongs.get(explanation.state):
        return explanation
    try:
        dead_letter_table(context)
    except SchemaError as error:
        return replace(explanation, reason=f"{explanation.reason}; it cannot be moved to the dead letters: {error}")
    return explanation


def _explain(
    row: sa.Row[Any], columns: MessageColumns, state: MessageState, group: GroupInfo | None = None, blocking: Any = None
) -> Explanation:
    """Describe a message's state."""
    when = columns.time_next if columns.time_acked is None else columns.time_acked
    owner = None if group is None else group.owner
    name = f"group {row.group_id!r}" if row.group_id else "the group of messages without one"
    exhausted = f"message {row.id!r} has used up its attempts ({columns.epoch}); skip it, or reschedule it"
    reason = MESSAGE_REASONS[state].format(
        when=format_time(when),
        expired=format_time(when if columns.expires_at is None else columns.expires_at),
        sent="once" if columns.epoch == 1 else f"{columns.epoch} times",
        who=(row.consumer or "a consumer without a name")
        if state == "leased"
        else (f"{owner} alone" if owner else "any consumer that claims"),
        blocking=repr(blocking),
        group=name,
        why=exhausted,
        because=f": {row.last_error}" if row.last_error else "",
    )
    if state == "leased" and columns.cancelled:
        reason += "; it is cancelled: its handler may finish it, but it is not sent again"
    waits_for_time = state in ("leased", "scheduled", "backing_off", "ready")
    return Explanation(
        row.id,
        state,
        reason,
        columns.time_next if waits_for_time else None,
        row.consumer if state in ("leased", "acked") else None,
        blocking if state in ("blocked", "ack_held_back") else None,
        read_attempts(row.failed_attempts),
    )


def _explain_ready(
    context: TableContext, connection: sa.Connection, explanation: Explanation, group: GroupInfo | None, now: int
) -> Explanation:
    """Explain why a ready message is not sent."""
    if explanation.state != "ready":
        return explanation
    held = held_by_table(context, connection, now)
    until = None if group is None else group.paused_until
    if until is not None and until > now and (held is None or held.hold != "paused"):
        held = TableHold("paused", paused("its group", until), until)
    if held is None and context.options.turns_by is not None:
        held = _held_by_key(context, connection, explanation.id, now)
    if held is not None:
        due_at = None if held.until == MAX_NS else held.until
        return replace(explanation, state=held.hold, reason=f"is due, but {held.reason}", due_at=due_at)
    active = everywhere(context, connection, now)
    # A group that is skipped because the database refuses a message of it looks unsettled.
    is_skipped = group is not None and group.hold == "unsettled" and active.failure is not None
    if group is not None and group.hold is not None and not is_skipped:
        return replace(explanation, state=group.hold, reason=f"is due, but {group.blocked_by}")
    if active.failing:
        fail = f"the claims of {active.failing} of {active.subscribers} subscriptions fail: {active.failure}"
        return replace(explanation, reason=f"{explanation.reason}; {fail}")
    if active.failure is not None:
        return replace(explanation, reason=f"{explanation.reason}; {active.failure}")
    return explanation


def _held_by_key(context: TableContext, connection: sa.Connection, message_id: Any, now: int) -> TableHold | None:
    """Explain that the rate or the limit of its key holds a due message back; None if neither does."""
    rows = context.rows
    its = sa.select(rows.c[MESSAGE_KEY], rows.c.claim_id).where(rows.c.id == message_id)
    key, claim_id = connection.execute(its).one()
    free_at = key_free_at(context, connection, key, now)
    if free_at is not None and free_at > now:
        when = format_time(free_at)
        return TableHold(
            "key_rate",
            HOLD_REASONS["key_rate"].format(name=context.options.turns_by, key=quoted(key), when=when),
            free_at,
        )
    if claim_id is not None or in_flight(context, connection, {key}, 1).free[key]:
        return None
    count = connection.execute(sa.select(sa.func.count()).where(rows.c[MESSAGE_KEY] == key, is_out(rows))).scalar()
    return TableHold("limit", HOLD_REASONS["limit"].format(key=quoted(key), count=count), MAX_NS)


def _dead_letter(context: TableContext, connection: sa.Connection, message_id: Any) -> Explanation | None:
    if context.dead is None:
        return None
    dead_rows = context.dead.rows
    row = connection.execute(
        sa.select(dead_rows.c.id, dead_rows.c.failed_attempts, dead_rows.c[REASON], dead_rows.c[DIED]).where(
            dead_rows.c.id == message_id
        )
    ).first()
    if row is None:
        return None
    when = format_time(getattr(row, DIED))
    reason = MESSAGE_REASONS["dead"].format(when=when, why=getattr(row, REASON), table=repr(context.dead.name))
    return Explanation(row.id, "dead", reason, attempts=read_attempts(row.failed_attempts))


def _blocking_id(
    context: TableContext, connection: sa.Connection, row: sa.Row[Any], group_state: GroupState | None
) -> Any:
    """Return the message that must be acked before another one of its group is sent."""
    rows = context.rows
    # An unrouted message comes after all routed ones of its group.
    routed = rows.c.position.is_not(None)
    earlier = rows.c.position < row.position if row.position is not None else routed | (rows.c.seq < row.seq)
    group = sa.func.coalesce(rows.c.group_id, UNGROUPED) == (row.group_id or UNGROUPED)
    # An acked message only waits for those before it.
    blocks = ~is_expired(rows, context.backend.now_sql()) & rows.c.ack_held_at.is_(None)
    if context.options.groups == "exclusive" and group_state != "draining" and row.ack_held_at is None:
        # The owner gets later messages while it has earlier ones.
        blocks &= rows.c.claim_id.is_(None) | (rows.c.time_next <= context.backend.now_sql())
    return connection.execute(
        sa.select(rows.c.id)
        .where(group, earlier, rows.c.time_acked.is_(None), blocks)
        .order_by(rows.c.position.is_(None), rows.c.position, rows.c.seq)
        .limit(1)
    ).scalar()
