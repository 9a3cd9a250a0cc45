"""The subscription: deliveries one after another, as they become due."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from waterclock.tables import acking
from waterclock.tables.callers import CallerConnections
from waterclock.tables.changes import Changes
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery
from waterclock.tables.receiving import pause, receive


class Subscription:
    """Iterates over deliveries, and waits for the next one where none is due. Close it, or use it in ``with``.

    It holds no more than the table's ``cache_size`` messages that are not over. Closing it gives back at once what it
    claimed and did not hand out, and counts no attempt.
    """

    def __init__(
        self, context: TableContext, callers: CallerConnections, changes: Changes, consumer: str, limit: int
    ) -> None:
        self._context = context
        self._callers = callers
        self._changes = changes
        self._limit = limit
        self._waiting: deque[Delivery] = deque()
        self._handed_out: list[Delivery] = []
        self._stop = threading.Event()
        self._closed = False
        self.consumer = consumer

    def stop(self) -> None:
        """End the iteration after the delivery that is in hand; other threads and signal handlers may call it."""
        self._stop.set()

    def close(self) -> None:
        """Give back what was not handed out, at once and without counting an attempt."""
        self._stop.set()
        if self._closed:
            return
        self._closed = True
        unstarted = [delivery.held for delivery in self._waiting]
        self._waiting.clear()
        self._context.backend.transact(lambda own: acking.give_back(self._context, own, unstarted))
        self._changes.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        while not self._stop.is_set():
            while self._waiting:
                delivery = self._waiting.popleft()
                if delivery.lease_until > self._context.backend.now():
                    self._handed_out.append(delivery)
                    return delivery
            self._handed_out = [delivery for delivery in self._handed_out if not self._over(delivery)]
            room = min(self._limit, self._context.options.cache_size - len(self._handed_out))
            if room > 0:
                self._waiting.extend(receive(self._context, self._callers, room, self.consumer))
            if not self._waiting:
                pause(self._context, self._changes, self._stop, None)
        raise StopIteration

    def _over(self, delivery: Delivery) -> bool:
        return delivery.over or delivery.lease_until <= self._context.backend.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
