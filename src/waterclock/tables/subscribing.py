"""The subscription: deliveries one after another, as they become due."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from waterclock.tables import acking
from waterclock.tables.callers import CallerConnections
from waterclock.tables.changes import Changes
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery
from waterclock.tables.entry import Entry
from waterclock.tables.purging import purge_some
from waterclock.tables.receiving import pause, receive

_PURGE_EVERY = 1.0  # s


class Subscription:
    """Iterates over deliveries, and waits for the next one where none is due. Close it, or use it in ``with``.

    It holds no more than the table's ``cache_size`` messages that are not over. Closing it gives back at once what it
    claimed and did not hand out, and counts no attempt. While it is used it purges the table once a second.
    """

    def __init__(self, entry: Entry, callers: CallerConnections, changes: Changes, consumer: str, limit: int) -> None:
        self._entry = entry
        self._callers = callers
        self._changes = changes
        self._limit = limit
        self._waiting: deque[Delivery] = deque()
        self._handed_out: list[Delivery] = []
        self._stop = threading.Event()
        self._closed = False
        self._purged_at = -math.inf
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
        context = self._entry.last_seen
        context.backend.transact(lambda own: acking.give_back(context, own, unstarted))
        self._changes.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        while not self._stop.is_set():
            context = self._entry.now()
            self._purge(context)
            while self._waiting:
                delivery = self._waiting.popleft()
                if delivery.lease_until > context.backend.now():
                    self._handed_out.append(delivery)
                    return delivery
            self._handed_out = [delivery for delivery in self._handed_out if not self._over(delivery)]
            room = min(self._limit, context.options.cache_size - len(self._handed_out))
            if room > 0:
                self._waiting.extend(receive(self._entry, self._callers, room, self.consumer))
            if not self._waiting:
                pause(context, self._changes, self._stop, None)
        raise StopIteration

    def _purge(self, context: TableContext) -> None:
        if time.monotonic() - self._purged_at >= _PURGE_EVERY:
            purge_some(context)
            self._purged_at = time.monotonic()

    def _over(self, delivery: Delivery) -> bool:
        return delivery.over or delivery.lease_until <= self._entry.last_seen.backend.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
