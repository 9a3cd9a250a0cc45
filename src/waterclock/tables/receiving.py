"""Receiving: one claim, and the wait for what the next one may find."""

from __future__ import annotations

import secrets
import threading

from waterclock.tables.callers import CallerConnections
from waterclock.tables.changes import Changes
from waterclock.tables.claiming import anything_due, claim, next_due
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery

_SECOND = 1_000_000_000


def receive(context: TableContext, callers: CallerConnections, limit: int, consumer: str | None) -> list[Delivery]:
    """Claim up to ``limit`` messages that are due, without waiting."""
    if context.sql.one_writer:
        # Where writers take turns, consumers that find nothing should not ask for one, nor wait for a long one to end.
        with context.backend.snapshot() as connection:
            if not anything_due(context, connection):
                return []
    lease = secrets.randbits(63)
    claimed = context.backend.transact(lambda own: claim(context, own, limit, consumer, lease))
    return [Delivery(context, callers, one, lease) for one in claimed]


def pause(context: TableContext, changes: Changes, stop: threading.Event, longest: float | None) -> None:
    """Wait until something changed, or is due, or a poll interval is over; at most ``longest`` seconds."""
    with context.backend.snapshot() as connection:
        due = next_due(context, connection)
        now = context.backend.now(connection)
    seconds = context.options.poll_interval / _SECOND
    if due is not None:
        seconds = min(seconds, max(0, due - now) / _SECOND)
    changes.wait(seconds if longest is None else min(seconds, longest), stop)
