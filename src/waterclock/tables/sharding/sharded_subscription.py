"""Reads several shards, each in its own thread, so that a hanging shard does not block the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

from waterclock._support import moments
from waterclock._support.closing import Closing
from waterclock._support.pickling import refuse_pickling
from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import discard
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.tables.sharding.shard import Shard

PATIENCE = 2.0  # seconds that reading waits for a shard that is busy or does not answer before it counts as unavailable

_SECOND = 1_000_000_000

_ENDS_WITHIN = 5.0
"""Seconds that `close` waits for the claims of all shards, as that of an ordinary subscription."""

OpenTable = Callable[[Shard], MessageTable]


class ShardedSubscription(Closing):
    """An iterator over the deliveries of several shards in turn. Close it, or use it in ``with``.

    An unavailable shard is retried with pauses that double up to half a minute.
    """

    def __init__(
        self, shards: Sequence[Shard], open_table: OpenTable, consumer: str | None, limit: int | None, **how: Any
    ) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._turn = 0
        self._readers = [
            _ShardReader(shard, open_table, self._changed, {"consumer": consumer, "limit": limit, **how})
            for shard in shards
        ]
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """End the iteration after the current delivery; safe to call from other threads.

        Safe in signal handlers of the iterating thread, too: the lock is reentrant.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Return to the table all messages that were not handed out, at once and without counting an attempt."""
        self.stop()
        for reader in self._readers:
            reader.stop()
        until = moments.monotonic() + _ENDS_WITHIN
        for reader in self._readers:
            reader.finish(until)

    def next_within(self, duration: int) -> Delivery | None:
        """Return the next delivery; None if none comes within the duration (ns) or the subscription is stopped."""
        return self._next(moments.monotonic() + duration / _SECOND)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self._next(None)
        if delivery is None:
            raise StopIteration
        return delivery

    def _next(self, until: float | None) -> Delivery | None:
        while True:
            with self._changed:
                reader = self._ready_reader(until)
                if reader is None:
                    return None
                delivery = reader.offered
            assert delivery is not None  # noqa: S101  # it is ready
            # It may have waited here longer than its lease.
            try:
                is_held = reader.is_held(delivery)
            except UnavailableError as error:
                reader.take(delivery, error)
                continue
            if reader.take(delivery) and is_held:
                return delivery

    def _ready_reader(self, until: float | None) -> _ShardReader | None:
        """Wait for a reader with a delivery, and return the next in turn; None if none comes in time."""
        while not self._stopped:
            turn = self._readers[self._turn :] + self._readers[: self._turn]
            for reader in turn:
                if reader.failure is not None:
                    raise reader.failure
            for reader in turn:
                if reader.offered is not None:
                    self._turn = (self._readers.index(reader) + 1) % len(self._readers)
                    return reader
            left = None if until is None else until - moments.monotonic()
            if left is not None and left <= 0:
                return None
            moments.wait(self._changed, left)
        return None

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Connect and subscribe in the other process")


class _ShardReader:
    """Read one shard, and offer one delivery at a time."""

    def __init__(
        self, shard: Shard, open_table: OpenTable, changed: threading.Condition, how: Mapping[str, Any]
    ) -> None:
        self._shard = shard
        self._open_table = open_table
        self._how = how
        self._changed = changed
        self._stop = threading.Event()
        self._current: TableSubscription | None = None
        self._away = False
        # A daemon thread, because one that waits for a dead host must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"waterclock-shard{shard.name}", daemon=True)
        self.offered: Delivery | None = None
        self._error: UnavailableError | None = None  # why the delivery that was offered last was not taken
        self._offered_at = 0.0
        self.failure: BaseException | None = None

    def start(self) -> None:
        moments.start(self._thread)

    def stop(self) -> None:
        self._stop.set()
        with self._changed:
            current = self._current
            self._changed.notify_all()
        if current is not None:
            current.stop()

    def finish(self, until: float) -> None:
        """Wait until the thread has given back its messages, unless its shard is unavailable.

        ``until`` is when to stop waiting, in seconds of the monotonic clock: the thread then returns them later.
        """
        while self._thread.is_alive() and not self._away and moments.monotonic() < until:
            moments.join(self._thread, 0.05)

    def take(self, delivery: Delivery, error: UnavailableError | None = None) -> bool:
        """Take the offered delivery, or return it to its shard after an error. Return False if another thread did."""
        with self._changed:
            if self.offered is not delivery:
                return False
            self.offered, self._error = None, error
            self._changed.notify_all()
            return True

    def is_held(self, delivery: Delivery) -> bool:
        """Return whether the delivery is still ours."""
        if moments.monotonic() - self._offered_at > LOOK_EVERY:
            discard([delivery], extended=False)
        now = self._shard.backend.now()
        # Another thread may have found the shard unavailable while the waiting subscription saw no failure.
        self._shard.note_back()
        return not delivery.lost and delivery.lease_until > now

    def _run(self) -> None:
        while not moments.wait(self._stop, self._shard.rest):
            try:
                self._read()
            except UnavailableError as error:
                self._away = True
                self._shard.note_away(error)
            except BaseException as error:  # noqa: BLE001  # the iteration raises it
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                return

    def _read(self) -> None:
        table = self._open_table(self._shard)
        with self._shard.backend.patience(PATIENCE), table.subscribe(**self._how) as deliveries:
            deliveries.patience = 0
            with self._changed:
                self._current = deliveries
            if self._stop.is_set():
                return
            self._shard.backend.now()
            self._away = False
            self._shard.note_back()
            try:
                self._pass_on(deliveries)
            finally:
                with self._changed:
                    self._current = None

    def _pass_on(self, deliveries: TableSubscription) -> None:
        for delivery in deliveries:
            with self._changed:
                self.offered, self._offered_at = delivery, moments.monotonic()
                self._changed.notify_all()
                moments.wait_for(self._changed, lambda: self.offered is None or self._stop.is_set())
                taken = self._withdraw() is None
                error, self._error = self._error, None
            if error is not None:
                deliveries.put_back(delivery)
                raise error
            if not taken:
                deliveries.put_back(delivery)
                return

    def _withdraw(self) -> Delivery | None:
        left, self.offered = self.offered, None
        return left


def receive_from(
    shards: Iterable[Shard], open_table: OpenTable, limit: int, consumer: str | None, **which: Any
) -> list[Delivery]:
    """Claim up to ``limit`` due messages from one shard after the other, without waiting.

    Raises `UnavailableError` if every shard is unavailable.
    """
    found: list[Delivery] = []
    reasons: list[str] = []
    answered = False
    for shard in shards:
        if len(found) >= limit and answered:
            break
        if shard.rest:
            reasons.append(f"{shard.name}: {shard.reason}")
            continue
        try:
            table = open_table(shard)
            with shard.backend.patience(PATIENCE):
                found += table.receive(limit - len(found), None, consumer, **which)
        except UnavailableError as error:
            shard.note_away(error)
            reasons.append(f"{shard.name}: {error}")
        else:
            shard.note_back()
            answered = True
    if not answered:
        raise UnavailableError(f"cannot receive: all shards are unavailable ({'; '.join(reasons)})")
    return found
