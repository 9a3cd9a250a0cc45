"""Deliveries and subscriptions of message tables, for asyncio."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from waterclock.aio.calling import Facade, Plain, awaited
from waterclock.aio.threads import CallThreads
from waterclock.aio.waiting import DatabaseWaits
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.consumers.delivery import Delivery as SyncDelivery
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.consumers.subscription import TableSubscription as SyncSubscription
from waterclock.tables.model.attempts import Attempt


class Delivery(Facade[SyncDelivery]):
    """A message that this consumer has; see `waterclock.Delivery`.

    ``async with delivery:`` extends its lease while the block runs. It acks when the block ends, and backs off when the
    block raises. If the task is cancelled, the message returns to the table at once, and no attempt is counted.
    """

    id = Plain[SyncDelivery, Any](lambda delivery: delivery.id)
    payload = Plain[SyncDelivery, Any](lambda delivery: delivery.payload)
    headers = Plain[SyncDelivery, Mapping[str, str]](lambda delivery: delivery.headers)
    group = Plain[SyncDelivery, str | None](lambda delivery: delivery.group)
    priority = Plain[SyncDelivery, int](lambda delivery: delivery.priority)
    columns = Plain[SyncDelivery, dict[str, Any]](lambda delivery: delivery.columns)
    progress = Plain[SyncDelivery, Any](lambda delivery: delivery.progress)
    attempts = Plain[SyncDelivery, Sequence[Attempt]](lambda delivery: delivery.attempts)
    first_for_consumer = Plain[SyncDelivery, bool](lambda delivery: delivery.first_for_consumer)
    epoch = Plain[SyncDelivery, int](lambda delivery: delivery.epoch)
    lease_until = Plain[SyncDelivery, int](lambda delivery: delivery.lease_until)
    expires_at = Plain[SyncDelivery, int | None](lambda delivery: delivery.expires_at)
    time_created = Plain[SyncDelivery, int](lambda delivery: delivery.time_created)
    time_scheduled = Plain[SyncDelivery, int](lambda delivery: delivery.time_scheduled)
    cancelled = Plain[SyncDelivery, bool](lambda delivery: delivery.cancelled)
    lost = Plain[SyncDelivery, bool](lambda delivery: delivery.lost)
    over = Plain[SyncDelivery, bool](lambda delivery: delivery.over)

    ack = awaited(SyncDelivery.ack)
    nack = awaited(SyncDelivery.nack)
    snooze = awaited(SyncDelivery.snooze)
    dead_letter = awaited(SyncDelivery.dead_letter)
    extend = awaited(SyncDelivery.extend)
    save = awaited(SyncDelivery.save)

    async def __aenter__(self) -> Self:
        self.sync.__enter__()  # starts the heartbeat, without a query
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = partial(self.sync.__exit__, kind, error, trace)
        if isinstance(error, asyncio.CancelledError):
            end = self._give_back
        try:
            await self.threads.call(end, is_owed=True)
        except InvalidArgumentError:  # the database was closed, so that the call was not made
            self._let_lease_end()
            raise

    def _give_back(self) -> None:
        try:
            if not (self.sync.over or self.sync.undecided):
                self.sync.snooze("0s")
        except LeaseLostError:  # another consumer has the message by now
            return
        finally:
            self._let_lease_end()

    def _let_lease_end(self) -> None:
        heartbeat_of(self.sync.context.backend).release(self.sync)


class Deliveries:
    """Iterates over deliveries with ``async for``, and waits for the next one; see `waterclock.tables`' subscription.

    Use it in ``async with``: it then at once returns claimed messages that it did not hand out. Queries run in the
    database's threads, and waiting takes no extra thread.
    """

    def __init__(self, subscribe: Callable[[], SyncSubscription], threads: CallThreads, waiting: DatabaseWaits) -> None:
        self._subscribe = subscribe
        self.threads = threads
        self._waiting = waiting
        self._sync: SyncSubscription | None = None
        self._turn = asyncio.Lock()
        self._working = threading.Lock()  # a call goes on in its thread after its await was cancelled
        self._ending = asyncio.Event()

    async def _opened(self) -> SyncSubscription:
        if self._sync is not None:
            return self._sync
        sync = self._sync = await self.threads.call(self._subscribe, undo=lambda sync: sync.close())
        if self._ending.is_set():  # closed meanwhile
            await self.close()
        return sync

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        async with self._turn:
            if self._ending.is_set():
                raise StopAsyncIteration
            sync = await self._opened()
            was_woken = False
            while not self._ending.is_set():
                found: SyncDelivery | float = 0.0
                try:
                    found = await self.threads.call(partial(self._poll, sync), undo=partial(self._undo, sync))
                finally:
                    if was_woken:
                        self._waiting.report(sync.watched, found=isinstance(found, SyncDelivery))
                if isinstance(found, SyncDelivery):
                    return Delivery(found, self.threads)
                was_woken = found == math.inf and await self._until_due(sync)
                if found != math.inf:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._ending.wait(), found)
            raise StopAsyncIteration

    def _poll(self, sync: SyncSubscription) -> SyncDelivery | float:
        with self._working:
            return sync.poll()

    def _undo(self, sync: SyncSubscription, found: SyncDelivery | float) -> None:
        with self._working:
            sync.let_go(found if isinstance(found, SyncDelivery) else None)

    async def _until_due(self, sync: SyncSubscription) -> bool:
        """Wait until a poll may find something, or until this is stopped."""
        due = asyncio.ensure_future(self._waiting.until_due(sync.watched))
        stopped = asyncio.ensure_future(self._ending.wait())
        claims = False
        try:
            await asyncio.wait((due, stopped), return_when=asyncio.FIRST_COMPLETED)
            claims = due.done() and due.result() and not self._ending.is_set()
            return claims
        finally:
            for each in (due, stopped):
                each.cancel()
            if due.done() and not due.cancelled() and due.exception() is None and not claims:
                self._waiting.report(sync.watched, found=True)  # the next waiter must look instead

    def stop(self) -> None:
        """End the iteration after the current delivery."""
        self._ending.set()

    async def close(self) -> None:
        """Return to the table the messages that were not handed out, at once and without counting an attempt."""
        self._ending.set()
        sync, self._sync = self._sync, None
        if sync is not None:
            await self.threads.call(sync.close, is_owed=True)  # a poll under way then returns its messages

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
