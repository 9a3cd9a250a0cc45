"""Handles all due messages in the thread of a test, and in the test's transaction if there is one."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.selection import make_selection, select_on
from waterclock.tables.consumers.delivery import Claim, Delivery
from waterclock.tables.consumers.receiving import hand_over
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming.claiming import claim_within
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.dead_letters import bury_leased
from waterclock.tables.messages.finishing.expiring import expire_claimed
from waterclock.tables.model.attempts import Failure
from waterclock.tables.model.claims.claim import Wanted
from waterclock.tables.model.options import MOST, check_count
from waterclock.time import to_duration
from waterclock.work.flow.fetcher import UNKNOWN_FOR
from waterclock.work.ground.handlers import BoundHandler, Handlers, handlers_of, is_factory
from waterclock.work.ground.outcomes import HandlerSays, Outcome, outcome_of
from waterclock.work.running.forks import ending_forks

CONSUMER = "waterclock.testing"
"""Name of the consumer that takes the messages."""

_Lend = Callable[[], AbstractContextManager[sa.Connection]]


def drain(table: MessageTable, handler: Any, *, connection: Any = None, limit: int = 10_000) -> int:
    """Handle all messages of a table that are due, one after another in this thread; return how many.

    Messages that the handler itself puts are handled, too. No message waits for the table's ``rate_limit`` or ``rate``.
    Exceptions have the same meaning as in a worker: `Retry`, `Snooze`, `DeadLetter` and `Discard` are obeyed. With any
    other exception the message returns to the table, and the exception propagates to the test.

    Parameters
    ----------
    table
        The table.
    handler
        As for a `Worker`: a function, functions by the header ``kind``, or a context manager that yields either. It
        takes the same arguments as in a worker: a delivery, or a payload of the type that it names; ``async def``
        works, too.
    connection
        As in `MessageTable.put`: the transaction of the test, which may have put the messages and need not commit.
        Within Django's ``TestCase`` that is Django's ``connection``.
    limit
        Maximum number of messages; more are an error, because a handler that always puts another would never end.

    Raises
    ------
    InvalidArgumentError
        If more are due than ``limit``; for an ``async def`` if an event loop runs in this thread.
    """
    if not isinstance(table, MessageTable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need no types
        raise InvalidArgumentError(f"table must be a message table, got {quoted(table)}")
    check_count(limit, "limit")
    if _is_asynchronous(handler):
        _refuse_loop("it")
    with asyncio.Runner() as loop, ExitStack() as stack:
        handlers = handlers_of(handler, loop, stack)
        for each in handlers.all:
            if each.is_async:
                _refuse_loop(each.name)
        return _drain(table, handlers, loop, connection, limit)


def _is_asynchronous(given: Any) -> bool:
    """Return whether something is an asynchronous context manager, or creates one."""
    return is_factory(given) and (
        isinstance(given, AbstractAsyncContextManager) or inspect.isasyncgenfunction(inspect.unwrap(given))
    )


def _refuse_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidArgumentError(
        f"handler must be synchronous while an event loop runs in this thread, got {name}. Drain in another"
        " thread: await asyncio.to_thread(drain, table, handler)"
    )


def _drain(table: MessageTable, handlers: Handlers, loop: asyncio.Runner, connection: Any, limit: int) -> int:
    context = table.context
    if context.options.rate is not None:  # like a table's rate_limit, it must not delay a test
        key = next(iter(context.options.rate))
        unpaced = replace(context.options, rate=None, limit=context.options.limit or {key: MOST})
        context = replace(context, options=unpaced)
    callers = CallerConnections(context.backend)
    lend = _own(context) if connection is None else lambda: callers.use(connection)
    kinds = None if context.options.groups else handlers.kinds
    where, _ = select_on(context, make_selection(context, None, None, None, kinds))
    count = 0
    while (delivery := _take(context, callers, lend, where)) is not None:
        handler = handlers.find(delivery)
        if handler is None:  # the first of a group, which waits for a handler of its kind
            with lend() as own:
                _record(context, own, delivery, Outcome("snooze", to_duration(UNKNOWN_FOR, "delay")))
            continue
        if count == limit:
            with lend() as own:
                acking.give_back(context, own, [delivery.leased])
            raise InvalidArgumentError(
                f"limit of {limit} messages of table {table.name!r} reached, and more messages are due. Does a handler"
                " put a new message each time?"
            )
        count += 1
        _handle(context, lend, delivery, partial(_call, handler, loop), connection)
    return count


def _call(handler: BoundHandler, loop: asyncio.Runner, delivery: Delivery) -> None:
    with ending_forks(delivery.id):
        result = handler(delivery)
        if inspect.isawaitable(result):
            loop.run(_await(result))


async def _await(given: Awaitable[object]) -> None:
    await given


def _own(context: TableContext) -> _Lend:
    @contextmanager
    def lend() -> Any:
        with context.backend.engine.begin() as own:
            yield own

    return lend


def _take(
    context: TableContext, callers: CallerConnections, lend: _Lend, where: sa.ColumnElement[bool] | None
) -> Delivery | None:
    while True:
        wanted = Wanted(1, CONSUMER, secrets.randbits(63), context.lease_length, where)
        with lend() as own:
            claimed = claim_within(context, own, wanted)
            if not claimed:
                return None
            if claimed[0].expired:
                expire_claimed(context, own, [claimed[0].row.seq], wanted.claim_id)
                continue
        found = hand_over(context, callers, claimed, Claim(wanted.claim_id, CONSUMER, moments.monotonic_ns()))
        if found:
            return found[0]


def _handle(
    context: TableContext, lend: _Lend, delivery: Delivery, handle: Callable[[Delivery], object], connection: Any
) -> None:
    outcome = Outcome("ack")
    try:
        handle(delivery)
    except HandlerSays as says:
        outcome = outcome_of(says)
    except BaseException as error:
        if not (delivery.over or delivery.undecided):
            failed = outcome_of(error)
            failure = delivery.failure("failed", failed.last_error or "")
            with lend() as own:
                delivery.nack_in(own, None, failure)
        raise
    if delivery.over or delivery.undecided:
        return
    failure = None
    if outcome.verb in ("back_off", "dead_letter") and outcome.why is not None:
        failure = delivery.failure("dead_letter" if _is_buried(context, outcome) else "failed", outcome.why)
    with lend() as own:
        if not _record(context, own, delivery, outcome, failure):
            raise LeaseLostError(
                f"message {delivery.id!r} of table {context.name!r} was acked or rescheduled while its handler was"
                " running"
            )
    if connection is None:
        delivery.end("ack" if outcome.verb in ("ack", "discard") else "nack")


def _is_buried(context: TableContext, outcome: Outcome) -> bool:
    return outcome.verb == "dead_letter" and context.dead is not None


def _record(
    context: TableContext, own: sa.Connection, delivery: Delivery, outcome: Outcome, failure: Failure | None = None
) -> bool:
    leased = delivery.leased
    if outcome.verb == "snooze":
        return acking.put_off(context, own, leased, outcome.delay or 0)
    if _is_buried(context, outcome):
        return bury_leased(context, own, leased, outcome.why or "", failure)
    if outcome.verb in ("ack", "discard"):
        return not acking.ack_leased(context, own, [leased]).lost
    return delivery.nack_in(own, outcome.delay, failure)
