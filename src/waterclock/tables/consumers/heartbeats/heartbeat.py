"""The heartbeat: one thread for each process and database, which extends the leases of the process.

If a process handles messages of several tables, each further table has a thread of its own: if a table is
locked, the leases of the others must not end.

A thread extends the leases of deliveries that are being handled, renews the leases of exclusive consumers, and writes
the process's row in the catalogue. If a process stops or dies, its heartbeat stops and its leases end. Times in this
module are nanoseconds of the monotonic clock. An extended lease ends ``ack_wait`` after the database's current time.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from weakref import WeakSet

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.database.backend import Backend
from waterclock.database.deadlines import answers_within, at_most
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.undecided import Undecided, find_out
from waterclock.tables.messages.finishing import acking, extending
from waterclock.tables.model.claims.claim import Held
from waterclock.tables.model.timing.lease_length import beat_after

_SECOND = 1_000_000_000
_IDLE = 10.0  # s after which an idle thread ends
_TRIES_OF_A_LEASE = 12  # so that four tries may fail in the last third of a lease
_SHORTEST_TRY, _LONGEST_TRY = 0.25, 5.0  # s
_SHORTEST_PAUSE, _LONGEST_PAUSE = _SECOND // 10, _SECOND

SLACK = 1.0  # seconds to wait for an answer after the beat itself has timed out


LOOK_EVERY = _SECOND  # how often the heartbeat checks whether handled messages are cancelled, ns

WARN_EVERY = 60 * _SECOND
"""How often the heartbeat warns that leases of one table are not extended, ns: it retries up to ten times a second."""

_log = logging.getLogger(__name__)


class HandledDelivery(Undecided, Protocol):
    """A delivery whose lease is extended while it is being handled."""

    beat_at: int  # when its lease must be extended, in ns of the monotonic clock
    context: TableContext

    @property
    def over(self) -> bool:
        """Return whether its lease is no longer needed."""
        ...

    def behind(self) -> Sequence[HandledDelivery]:
        """Return the deliveries that wait in the same subscription until this one is handled."""
        ...

    def extended(self, held: Held | None) -> None:
        """Update it with the new lease; None if the lease was lost."""
        ...

    def cancel(self) -> None:
        """Mark the message as cancelled."""
        ...


class Beating(Protocol):
    """A consumer or a process whose liveness is shown by beats."""

    @property
    def beat_at(self) -> int:
        """Return when its next beat is due, in ns of the monotonic clock."""
        ...

    @property
    def over(self) -> bool:
        """Return whether it needs no more beats."""
        ...

    def beat(self) -> None:
        """Update ``beat_at`` and write to the database. Failures are logged, not raised."""
        ...


def patience_of(lease: int) -> float:
    """Return the seconds that a beat for a lease of this length (ns) may wait, locks included."""
    return min(max(lease / _SECOND / _TRIES_OF_A_LEASE, _SHORTEST_TRY), _LONGEST_TRY)


def retry_after(lease: int) -> int:
    """Return how long after a failed beat for a lease of this length it is retried, ns."""
    return min(max(lease // _TRIES_OF_A_LEASE, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def next_beat_after(lease: int, left: int) -> int:
    """Return how long after a beat the next one follows, ns, if the lease then had ``left`` ns.

    A beat does not extend the lease of a message that another transaction has locked. It is retried soon, because that
    transaction may last almost as long as the lease.
    """
    return min(beat_after(lease), max(left - (lease - beat_after(lease)), retry_after(lease)))


class Heartbeat:
    """Keep alive all consumers and deliveries of a process in one database. Thread-safe.

    ``beats`` says whether it has a thread of its own; otherwise call `beat`.
    """

    def __init__(self, *, beats: bool = True) -> None:
        self._beats = beats
        self._changed = threading.Condition()
        self._deliveries: dict[int, HandledDelivery] = {}
        # Weak references, so that subscriptions that are dropped without being closed are collected.
        self._beatings: WeakSet[Beating] = WeakSet()
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0
        self._kept_since: dict[int, int] = {}
        self._looks_at = 0
        self._warned_at: dict[int, int] = {}
        self._first_table: int | None = None  # whose leases this one extends
        self._of_tables: dict[int, Heartbeat] = {}  # the heartbeats of the other tables

    def _of(self, delivery: HandledDelivery) -> Heartbeat:
        """Return the heartbeat of a delivery's table."""
        table_id = delivery.context.table_id
        with self._changed:
            if self._first_table is None:
                self._first_table = table_id
            if not self._beats or table_id == self._first_table:
                return self
            return self._of_tables.setdefault(table_id, Heartbeat())

    def keep(self, delivery: HandledDelivery) -> None:
        """Extend a delivery's lease whenever due, and check whether the message is cancelled."""
        if (other := self._of(delivery)) is not self:
            other.keep(delivery)
            return
        with self._changed:
            now = moments.monotonic_ns()
            if not self._deliveries:
                self._looks_at = max(self._looks_at, now + LOOK_EVERY)
            self._deliveries[id(delivery)] = delivery
            self._kept_since[id(delivery)] = now
            self._go(min(delivery.beat_at, self._looks_at))

    def release(self, delivery: HandledDelivery) -> None:
        """Stop extending a delivery's lease."""
        if (other := self._of(delivery)) is not self:
            other.release(delivery)
            return
        with self._changed:
            self._deliveries.pop(id(delivery), None)
            self._kept_since.pop(id(delivery), None)

    def look_now(self) -> None:
        """Check now whether handled messages are cancelled."""
        with self._changed:
            if self._deliveries:
                self._kept_since = dict.fromkeys(self._kept_since, 0)
                self._looks_at = 0
                self._go(0)
            others = list(self._of_tables.values())
        for other in others:
            other.look_now()

    def add(self, beating: Beating) -> None:
        """Beat for a consumer or a process until it is over. Holds only a weak reference."""
        with self._changed:
            self._beatings.add(beating)
            self._go(beating.beat_at)

    def forget_beatings(self) -> None:
        """Stop beating for the consumers and processes added so far."""
        with self._changed:
            self._beatings.clear()

    def _go(self, beat_at: int) -> None:
        if not self._beats or sys.is_finalizing():  # then no thread can start
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="waterclock-heartbeat", daemon=True)
            self._sleeps_until = 0
            moments.start(self._thread)
        elif beat_at < self._sleeps_until:
            self._changed.notify()

    def beat(self) -> int | None:
        """Do all beats that are due; return when the next is due, None if none is."""
        now = moments.monotonic_ns()
        with self._changed:
            due = [one for one in self._deliveries.values() if one.beat_at <= now]
        by_table: dict[int, list[HandledDelivery]] = {}
        for one in (each for front in due for each in (front, *front.behind())):
            if one.over:
                one.beat_at = now + beat_after(one.context.options.ack_wait)
            else:
                by_table.setdefault(one.context.table_id, []).append(one)
        self._beat_who_is_due()
        for deliveries in by_table.values():
            for one in deliveries:
                one.beat_at = now + retry_after(one.context.options.ack_wait)
            _apart(lambda deliveries=deliveries: self._extend(deliveries, now))
            self._beat_who_is_due()  # locked messages of one table must not delay other tables
        self._look(now)
        with self._changed:
            return self._next()

    def _extend(self, deliveries: list[HandledDelivery], now: int) -> None:
        context = deliveries[0].context
        try:
            _extend(deliveries, now)
        except WaterclockError as error:
            # The ack finds out whether the lease was kept, so a log line is enough here.
            if now - self._warned_at.get(context.table_id, now - WARN_EVERY) >= WARN_EVERY:
                self._warned_at[context.table_id] = now
                _log.warning(
                    "cannot extend the leases of %d messages of table %r: %s",
                    len(deliveries),
                    context.name,
                    error,
                    extra=event("leases_not_extended", table=context.name, count=len(deliveries)),
                )
        else:
            self._warned_at.pop(context.table_id, None)

    def _look(self, now: int) -> None:
        """Check messages for cancellation once they have been handled for a while: most finish earlier."""
        with self._changed:
            if now < self._looks_at:
                return
            self._looks_at = now + LOOK_EVERY
            long = [one for key, one in self._deliveries.items() if self._kept_since[key] <= now - LOOK_EVERY]
        by_table: dict[int, list[HandledDelivery]] = {}
        for one in long:
            if not (one.over or one.undecided):
                by_table.setdefault(one.context.table_id, []).append(one)
        for deliveries in by_table.values():
            _apart(lambda deliveries=deliveries: _see_cancelled(deliveries))
            self._beat_who_is_due()

    def _beat_who_is_due(self) -> None:
        now = moments.monotonic_ns()
        with self._changed:
            for one in [each for each in self._beatings if each.over]:
                self._beatings.discard(one)
            due = sorted((one for one in self._beatings if one.beat_at <= now), key=lambda one: one.beat_at)
        for one in due:
            if one.beat_at <= now:  # otherwise an earlier beat included it
                _apart(one.beat)

    def _next(self) -> int | None:
        beatings = [one for one in self._beatings if not one.over]
        beats = [one.beat_at for one in (*self._deliveries.values(), *beatings)]
        return min((*beats, self._looks_at) if self._deliveries else beats, default=None)

    def _run(self) -> None:
        while True:
            with answers_within(_LONGEST_TRY + SLACK):  # other beats are waiting
                self.beat()
            with self._changed:
                next_beat = self._next()
                if next_beat is None:
                    self._sleeps_until = moments.monotonic_ns() + int(_IDLE * _SECOND)
                    if not moments.wait(self._changed, _IDLE) and self._next() is None:
                        self._thread = None
                        return
                    continue
                self._sleeps_until = next_beat
                moments.wait(self._changed, max(0, next_beat - moments.monotonic_ns()) / _SECOND)


def _apart(beat: Callable[[], object]) -> None:
    try:
        beat()
    except Exception:  # noqa: BLE001  # a fault of one must not end the leases of all
        _log.exception("a heartbeat failed")


def _extend(deliveries: Iterable[HandledDelivery], now: int) -> None:
    mine = list(deliveries)
    context = mine[0].context
    length = context.options.ack_wait
    patience = patience_of(length)
    with at_most(patience + SLACK):
        find_out(context, mine)
        # Undecided ones are retried: a caller's transaction holds their rows, and may be long.
        mine = [one for one in mine if not (one.over or one.undecided)]
        if not mine:
            return
        ends = context.backend.transact_within(
            patience, lambda own: extending.extend_all(context, own, [one.leased for one in mine], length)
        )
        clock = context.backend.now_about()
    for one in mine:
        held = ends.get((one.leased.seq, one.leased.claim_id))
        one.beat_at = now + next_beat_after(length, length if held is None else held.until - clock)
        one.extended(held)


def _see_cancelled(deliveries: Sequence[HandledDelivery]) -> None:
    context = deliveries[0].context
    leased = [one.leased for one in deliveries]
    try:
        with at_most(patience_of(context.options.ack_wait) + SLACK):
            found = context.backend.look(lambda own: acking.cancelled(context, own, leased))
    except WaterclockError as error:
        _log.info("cannot check for cancelled messages of table %r: %s", context.name, error)
        return
    for one in deliveries:
        if one.leased in found:
            one.cancel()


_heartbeats = PerDatabaseCache[Heartbeat](lambda _: Heartbeat())


def heartbeat_of(backend: Backend) -> Heartbeat:
    """Return the heartbeat of a database in this process."""
    return _heartbeats.of(backend)
