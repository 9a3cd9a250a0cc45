"""The subscription: deliveries one after another, as they become due."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from waterclock.errors import UnavailableError
from waterclock.tables import acking
from waterclock.tables.callers import CallerConnections
from waterclock.tables.changes import Changes
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery
from waterclock.tables.entry import Entry
from waterclock.tables.purging import purge_some
from waterclock.tables.receiving import pause, receive

_PURGE_EVERY = 1.0  # s
_RETRY_EVERY = 0.2  # s
_PATIENCE = 60.0  # s for which a subscription waits for a database that is away


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
        self._away_since: float | None = None
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
            try:
                delivery = self._next()
            except UnavailableError:
                if not self._may_wait_longer():
                    raise
                continue
            self._away_since = None
            if delivery is not None:
                return delivery
        raise StopIteration

    def _next(self) -> Delivery | None:
        """Give the next delivery, or None after having waited for one."""
        context = self._entry.now()
        self._purge(context)
        now = context.backend.now()
        while self._waiting:
            delivery = self._waiting.popleft()
            if delivery.lease_until > now:
                self._handed_out.append(delivery)
                return delivery
        self._handed_out = [one for one in self._handed_out if not one.over and one.lease_until > now]
        room = min(self._limit, context.options.cache_size - len(self._handed_out))
        if room > 0:
            self._waiting.extend(receive(self._entry, self._callers, room, self.consumer))
        if not self._waiting:
            pause(context, self._changes, self._stop, None)
        return None

    def _may_wait_longer(self) -> bool:
        """Wait a little for a database that restarts; False where it has been away for long."""
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since > _PATIENCE:
            return False
        self._stop.wait(_RETRY_EVERY)
        return True

    def _purge(self, context: TableContext) -> None:
        if time.monotonic() - self._purged_at >= _PURGE_EVERY:
            purge_some(context)
            self._purged_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
