"""Heartbeats: while deliveries are being handled, their leases are extended before they end; and other signs of life.

One thread for each process and database does it for all of them. A process that is stopped or dead beats no more, so
its leases end. Times are those that pass (monotonic, ns), because only the database's clock judges leases: a beat asks
it to hold on for ``ack_wait`` from its now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from waterclock.database.backend import Backend
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.undecided import Undecided, find_out
from waterclock.tables.messages import acking

_SECOND = 1_000_000_000
_RETRY = _SECOND  # after a beat that failed
_IDLE = 10.0  # s after which a thread that has nothing to hold ends
_log = logging.getLogger(__name__)


class Holding(Undecided, Protocol):
    """A delivery whose lease is kept up.

    Attributes
    ----------
    beat_at
        When its lease is to be extended, in ns of the monotonic clock.
    """

    beat_at: int
    context: TableContext

    @property
    def over(self) -> bool:
        """Whether it needs no lease any more."""
        ...

    def behind(self) -> Sequence[Holding]:
        """Give the deliveries that wait for this one to be handled, in the same hand."""
        ...

    def extended(self, until: int | None) -> None:
        """Note when the lease ends now, ns; None where it was lost."""
        ...


class Sign(Protocol):
    """What is told again and again for as long as the process lives."""

    @property
    def beat_at(self) -> int:
        """When it is to be told again, in ns of the monotonic clock."""
        ...

    @property
    def over(self) -> bool:
        """Whether there is nothing to tell any more."""
        ...

    def tell(self) -> None:
        """Tell it, and move ``beat_at``."""
        ...


def beat_after(lease: int) -> int:
    """How long after a lease of this length began it is extended, ns: when a third of it is left."""
    return lease * 2 // 3


class Heart:
    """Extends leases in time. Safe to share between threads.

    Parameters
    ----------
    clock
        The monotonic clock, ns.
    beats
        Whether it beats by itself; where not, call `beat`.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, beats: bool = True) -> None:
        self._clock = clock
        self._beats = beats
        self._changed = threading.Condition()
        self._holding: dict[int, Holding] = {}
        self._signs: dict[int, Sign] = {}
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0

    def hold(self, delivery: Holding) -> None:
        """Keep a delivery's lease up from now on."""
        with self._changed:
            self._holding[id(delivery)] = delivery
            self._go(delivery.beat_at)

    def release(self, delivery: Holding) -> None:
        """Let a delivery's lease be."""
        with self._changed:
            self._holding.pop(id(delivery), None)

    def attend(self, sign: Sign) -> None:
        """Give a sign of life from now on, until it is over."""
        with self._changed:
            self._signs[id(sign)] = sign
            self._go(sign.beat_at)

    def _go(self, beat_at: int) -> None:
        if not self._beats:
            return
        # A thread that a fork left behind is not alive here.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="waterclock-heart", daemon=True)
            self._sleeps_until = 0
            self._thread.start()
        elif beat_at < self._sleeps_until:
            self._changed.notify()

    def beat(self) -> int | None:
        """Do what is due; return when the next thing is, None where there is nothing to do."""
        now = self._clock()
        with self._changed:
            due = [one for one in self._holding.values() if one.beat_at <= now]
            self._signs = {key: one for key, one in self._signs.items() if not one.over}
            signs = [one for one in self._signs.values() if one.beat_at <= now]
        by_table: dict[int, list[Holding]] = {}
        for one in (each for front in due for each in (front, *front.behind())):
            if one.over:
                one.beat_at = now + beat_after(one.context.options.ack_wait)
            else:
                by_table.setdefault(one.context.table_id, []).append(one)
        for deliveries in by_table.values():
            _extend(deliveries, now)
        for sign in signs:
            sign.tell()
        with self._changed:
            return self._next()

    def _next(self) -> int | None:
        return min((one.beat_at for one in (*self._holding.values(), *self._signs.values())), default=None)

    def _run(self) -> None:
        while True:
            self.beat()
            with self._changed:
                next_beat = self._next()
                if next_beat is None:
                    self._sleeps_until = self._clock() + int(_IDLE * _SECOND)
                    if not self._changed.wait(_IDLE) and self._next() is None:
                        self._thread = None
                        return
                    continue
                self._sleeps_until = next_beat
                self._changed.wait(max(0, next_beat - self._clock()) / _SECOND)


def _extend(deliveries: Iterable[Holding], now: int) -> None:
    mine = list(deliveries)
    context = mine[0].context
    length = context.options.ack_wait
    try:
        find_out(context, mine)
        undecided = [one for one in mine if one.undecided]  # their rows are somebody's, who is not waited for
        mine = [one for one in mine if not (one.over or one.undecided)]
        for one in undecided:
            one.beat_at = now + _RETRY
        if not mine:
            return
        ends = context.backend.transact(
            lambda own: acking.extend_all(context, own, [one.leased for one in mine], length)
        )
    except WaterclockError as error:
        # Whether the lease lasted is told by the ack, so there is nobody to tell but the log.
        _log.warning("cannot extend the leases of %d messages of %r: %s", len(mine), context.name, error)
        for one in mine:
            one.beat_at = now + _RETRY
        return
    for one in mine:
        one.beat_at = now + beat_after(length)
        one.extended(ends.get((one.leased.seq, one.leased.claim_id)))


_hearts: WeakKeyDictionary[Backend, Heart] = WeakKeyDictionary()
_making = threading.Lock()


def heart_of(backend: Backend) -> Heart:
    """Give the heart of a database in this process."""
    with _making:
        heart = _hearts.get(backend)
        if heart is None:
            heart = _hearts[backend] = Heart()
        return heart
