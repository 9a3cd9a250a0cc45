"""Handling all that is due in a test's own thread, and in its own transaction where it has one."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa

from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.quoting import quoted, said_of
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery, hand_over
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages import acking, locking
from waterclock.tables.messages.claiming import claim_within
from waterclock.tables.messages.dead_letters import bury_leased
from waterclock.tables.messages.expiring import expire_claimed
from waterclock.tables.model.claim import Wanted
from waterclock.tables.model.options import check_count
from waterclock.work.handlers import BoundHandler
from waterclock.work.outcomes import HandlerSays, Outcome, outcome_of

CONSUMER = "waterclock.testing"
"""By this name messages are taken."""

_Lend = Callable[[], AbstractContextManager[sa.Connection]]


def drain(table: MessageTable, handler: Callable[..., Any], *, connection: Any = None, limit: int = 10_000) -> int:
    """Handle all messages of a table that are due, one after another in this thread; return how many.

    Those that the handler itself puts are handled, too. What it raises means what it means to a worker: `Retry`,
    `Snooze`, `DeadLetter` and `Discard` are heeded. With any other exception the message is given back, and the
    exception goes on to the test.

    Parameters
    ----------
    table
        The table.
    handler
        Takes what a worker gives it: a delivery, or a payload of the type that it names; ``async def`` works, too.
    connection
        As in `MessageTable.put`: the transaction of the test, which may have put the messages and need not commit.
        Within Django's ``TestCase`` that is Django's ``connection``.
    limit
        After so many messages it is an error that more are due: a handler that always puts another would never end.

    Raises
    ------
    InvalidArgumentError
        Where more are due than ``limit``; for an ``async def`` where an event loop runs in this thread.
    """
    if not isinstance(table, MessageTable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need no types
        raise InvalidArgumentError(f"table: {quoted(table)} is no message table")
    check_count(limit, "limit")
    context = table.context
    callers = CallerConnections(context.backend)
    lend = _own(context) if connection is None else lambda: callers.use(connection)
    bound = BoundHandler(handler)
    if bound.is_async and _has_loop():
        raise InvalidArgumentError(
            f"handler: {bound.name} is asynchronous, and an event loop runs in this thread; drain from another one:"
            " await asyncio.to_thread(drain, table, handler)"
        )
    count = 0
    while (delivery := _take(context, callers, lend)) is not None:
        if count == limit:
            with lend() as own:
                acking.give_back(context, own, [delivery.leased])
            raise InvalidArgumentError(
                f"limit: {limit} messages of {table.name!r} were handled, and more are due; does a handler put one for"
                " each that it handles?"
            )
        count += 1
        _handle(context, lend, delivery, bound, connection)
    return count


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _own(context: TableContext) -> _Lend:
    @contextmanager
    def lend() -> Any:
        with context.backend.engine.begin() as own:
            yield own

    return lend


def _take(context: TableContext, callers: CallerConnections, lend: _Lend) -> Delivery | None:
    while True:
        wanted = Wanted(1, CONSUMER, secrets.randbits(63), context.backoff)
        with lend() as own:
            claimed = claim_within(context, own, wanted)
            if not claimed:
                return None
            if claimed[0].expired:
                expire_claimed(context, own, [claimed[0].row.seq], wanted.claim_id)
                continue
        found = hand_over(context, callers, claimed, wanted.claim_id, 0)
        if found:
            return found[0]


def _handle(context: TableContext, lend: _Lend, delivery: Delivery, handler: BoundHandler, connection: Any) -> None:
    outcome = Outcome("ack")
    try:
        result = handler(delivery)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except HandlerSays as says:
        outcome = outcome_of(says)
    except BaseException as error:
        if not (delivery.over or delivery.undecided):
            with lend() as own:
                delivery.nack_in(own, None, said_of(error))
        raise
    if delivery.over or delivery.undecided:
        return
    with lend() as own:
        if not _record(context, own, delivery, outcome):
            raise LeaseLostError(
                f"message {delivery.id!r} of {context.name!r} is not ours any more: it was acked or rescheduled while"
                " its handler ran"
            )
    if connection is None:
        delivery.end("ack" if outcome.verb in ("ack", "discard") else "nack")


def _record(context: TableContext, own: sa.Connection, delivery: Delivery, outcome: Outcome) -> bool:
    leased = delivery.leased
    if outcome.verb == "snooze":
        if not all(locking.still_leased(context, own, [leased])):
            return False
        at = context.backend.now(own) + (outcome.delay or 0)
        return acking.reschedule(context, own, [delivery.id], at, delivery.epoch - 1) == 1
    if outcome.verb == "dead_letter" and context.dead is not None:
        return bury_leased(context, own, leased, outcome.why or "")
    if outcome.verb in ("ack", "discard"):
        return not acking.ack_leased(context, own, [leased]).lost
    return delivery.nack_in(own, outcome.delay, outcome.why)
