"""Receiving: one claim, and the wait for what the next one may find."""

from __future__ import annotations

import secrets
import threading
import time

from sqlalchemy import exc

from waterclock.tables.callers import CallerConnections
from waterclock.tables.changes import Changes
from waterclock.tables.claiming import anything_due, claim, next_due
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery
from waterclock.tables.entry import LOOK_EVERY, Entry

_SECOND = 1_000_000_000


def receive(entry: Entry, callers: CallerConnections, limit: int, consumer: str | None) -> list[Delivery]:
    """Claim up to ``limit`` messages that are due, without waiting."""
    context = entry.now()
    try:
        return _receive(context, callers, limit, consumer)
    except exc.DBAPIError:
        # The SQL table may have been dropped or altered under us.
        fresh = entry.read()
        if fresh.rows.columns.keys() == context.rows.columns.keys():
            raise
        return _receive(fresh, callers, limit, consumer)


def receive_waiting(
    entry: Entry, callers: CallerConnections, limit: int, consumer: str | None, wait: int
) -> list[Delivery]:
    """Claim up to ``limit`` messages that are due; where none is, wait for some for ``wait`` ns at the most."""
    until = time.monotonic() + wait / _SECOND
    context = entry.now()
    changes = context.sql.changes(context.backend)
    try:
        while not (found := receive(entry, callers, limit, consumer)):
            left = until - time.monotonic()
            if left <= 0:
                break
            pause(entry.last_seen, changes, threading.Event(), left)
    finally:
        changes.close()
    return found


def _receive(context: TableContext, callers: CallerConnections, limit: int, consumer: str | None) -> list[Delivery]:
    if context.paused_until is not None and context.backend.now() < context.paused_until:
        return []
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
    if context.paused_until is not None and due is not None:
        due = max(due, context.paused_until)
    # Options that changed and tables that were dropped are noticed while waiting, too.
    seconds = min(context.options.poll_interval / _SECOND, LOOK_EVERY)
    if due is not None:
        seconds = min(seconds, max(0, due - now) / _SECOND)
    changes.wait(seconds if longest is None else min(seconds, longest), stop)
