"""Calls the handler of one message, in a thread or in the event loop, and reports the outcome."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, suppress
from typing import Any

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import LOOK_AGAIN_AFTER, blocks_group, replace_first_for_consumer
from waterclock.time import format_duration
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.outcomes import ACK, GIVE_BACK, SKIP, SKIP_GROUP, HandlerSays, Outcome, outcome_of
from waterclock.work.running.event_loop import EventLoop
from waterclock.work.running.forks import ending_forks

_SECOND = 1_000_000_000


class Caller:
    """Calls handlers, and passes their outcomes to the outcome writer of each message's table.

    ``around`` is a context manager, given each delivery, in which its handler is called. ``timeout`` is how long a
    handler may take, ns; None: unlimited. ``ended`` is called after each handler that has ended.
    """

    def __init__(
        self,
        queue: DispatchQueue,
        counter: WorkCounts,
        around: Callable[[Delivery], Any] | None,
        timeout: int | None,
        ended: Callable[[], object],
    ) -> None:
        self._queue = queue
        self._counter = counter
        self._around = around
        self._timeout = timeout
        self._ended = ended
        self._making = threading.Lock()
        self.loop: EventLoop | None = None  # the event loop of asynchronous handlers
        self.application_loop: asyncio.AbstractEventLoop | None = None

    def open_loop(self) -> EventLoop:
        """Return the loop in which asynchronous handlers run; begin it if this is the first one."""
        with self._making:
            if self.loop is None:
                self.loop = EventLoop(self._queue, self.wait_for, self.application_loop)
            return self.loop

    def call(self, one: Handling) -> bool:
        """Handle a message in the calling thread; return whether the thread keeps its slot."""
        try:
            if _is_old(one):
                one.fetcher.check(one)
            if (outcome := _unbegun(one)) is not None:
                return self.finish(one, outcome)
            with ExitStack() as stack:
                if self._around is not None:
                    self._enter_around(one, stack)
                one.delivery.when_cancelled(lambda: cancel(one))
                handler = one.fetcher.handlers.find(one.delivery)
                if handler is not None and handler.is_async and self.loop is not None:
                    self.loop.submit(lambda: self._within_timeout(_awaited(handler(one.delivery), one.delivery)), one)
                elif handler is not None:
                    with ending_forks(one.delivery.id):
                        given = handler(one.delivery)
                    self._run_if_coroutine(given, one)
            outcome = ACK
        except BaseException as error:  # noqa: BLE001  # an error of a handler ends its message, not the worker
            outcome = self._outcome(one, error)
        return self.finish(one, outcome)

    def _run_if_coroutine(self, given: Any, one: Handling) -> None:
        """Run the coroutine of a plain function that wraps an ``async def``, which looks like any other function."""
        if inspect.isawaitable(given):
            self.open_loop().submit(lambda: self._within_timeout(_awaited(given, one.delivery)), one)

    def _enter_around(self, one: Handling, stack: ExitStack) -> None:
        manager = self._around(one.delivery) if self._around is not None else None
        if not isinstance(manager, AbstractContextManager):
            raise InvalidArgumentError(f"'around' must be a synchronous context manager, got {quoted(manager)}")
        stack.enter_context(manager)

    async def wait_for(self, one: Handling) -> None:
        try:
            if _is_old(one):
                await asyncio.to_thread(one.fetcher.check, one)
            if (outcome := _unbegun(one)) is not None:
                self.finish(one, outcome)
                return
            one.delivery.when_cancelled(lambda: cancel(one))
            await self._within_timeout(self._handle_async(one))
            outcome = ACK
        except BaseException as error:  # noqa: BLE001  # as above
            outcome = self._outcome(one, error)
        self.finish(one, outcome)

    async def _handle_async(self, one: Handling) -> None:
        handler = one.fetcher.handlers.find(one.delivery)
        if handler is None:
            return
        if self._around is None:
            await _awaited(handler(one.delivery), one.delivery)
            return
        manager = self._around(one.delivery)
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager:
                await _awaited(handler(one.delivery), one.delivery)
        else:
            with manager:
                await _awaited(handler(one.delivery), one.delivery)

    async def _within_timeout(self, work: Any) -> None:
        async with asyncio.timeout(None if self._timeout is None else self._timeout / _SECOND):
            await work

    def _outcome(self, one: Handling, error: BaseException) -> Outcome:
        if one.delivery.cancelled and not isinstance(error, HandlerSays):
            return GIVE_BACK
        if isinstance(error, TimeoutError) and self.is_late(one):
            self._counter.add("timed_out")
            return self.timed_out()
        return outcome_of(error)

    def is_late(self, one: Handling, by: int = 0) -> bool:
        """Return whether a message's handler has exceeded its time limit by so many ns."""
        if self._timeout is None or one.waits_for_loop:
            return False
        return moments.monotonic_ns() - one.began_at >= self._timeout + by

    def timed_out(self) -> Outcome:
        """Return the outcome of a message whose handler takes too long."""
        return Outcome(
            "back_off", why=f"TimeoutError: the handler took longer than {format_duration(self._timeout or 0)}"
        )

    def finish(self, one: Handling, outcome: Outcome) -> bool:
        """Finish a message whose handler has ended; return whether the handler still owned it."""
        one.ended = True
        one.delivery.when_cancelled(None)  # break the reference cycle
        one.cancel = None
        observer = self._counter.observer
        if observer is not None and outcome.verb not in ("skip", "skip_group", "give_back"):
            observer.note_handled(one.delivery, (moments.monotonic_ns() - one.began_at) / _SECOND)
        if not one.decide():
            return False  # its time limit had passed, and it no longer owns the message
        dropped = self._queue.end(one, goes_on=outcome.verb in ("ack", "discard", "skip"))
        one.fetcher.put_outcome(one, outcome, dropped)
        self._ended()
        return True


async def _awaited(given: Any, delivery: Delivery) -> None:
    with ending_forks(delivery.id):
        await given


def cancel(one: Handling) -> None:
    """Cancel a handler, if possible."""
    how = one.cancel  # its handler may end at any time
    if how is not None:
        how()


def _is_old(one: Handling) -> bool:
    return one.began_at - one.claimed_at > LOOK_AGAIN_AFTER


def _unbegun(one: Handling) -> Outcome | None:
    """Return the outcome of a message that must not be handled any more; None if it must be."""
    delivery = one.delivery
    behind = () if one.lane is None else tuple(one.lane.waiting)
    if delivery.lost and not delivery.over and _may_block_group(delivery):
        outcome, behind = SKIP_GROUP, ()
    elif delivery.lost or delivery.over:
        outcome = SKIP
    elif delivery.expires_at is not None and delivery.expires_at <= delivery.context.backend.now_about():
        outcome, behind = GIVE_BACK, ()  # those behind it go back, too
    else:
        return None
    with suppress(WaterclockError):  # those behind it know already
        replace_first_for_consumer([delivery], [each.delivery for each in behind])
    return outcome


def _may_block_group(delivery: Delivery) -> bool:
    try:
        return blocks_group(delivery)
    except WaterclockError:
        return True
