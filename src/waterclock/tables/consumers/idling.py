"""Idle consumers: of those that wait for the same messages in one process, one watches the database for all.

It leads. The others sleep until it passes the lead on, which it does when it finds something: the next one then claims,
and leads if that gives it nothing. So of many consumers as many wake as there are messages, and the database is asked
as often as for one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from typing import Protocol
from weakref import WeakKeyDictionary

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import PerDatabaseCache

LEADS_FOR = 3.0
"""Seconds without a sign of the leader after which another one leads: its thread waits for something else."""


class Sleeper(Protocol):
    """A consumer that may wait for another one."""

    def nudge(self) -> None:
        """End its wait."""
        ...


class IdleConsumers:
    """The consumers of a process that wait for the same messages. Safe to share between threads.

    Attributes
    ----------
    purged_at
        When one of them began to purge the table, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leader: Sleeper | None = None
        self._seen_at = 0.0
        self.purged_at = -math.inf
        # Weak, because a consumer that is forgotten without being closed must not be kept alive.
        self._sleeping: WeakKeyDictionary[Sleeper, None] = WeakKeyDictionary()

    def leads(self, one: Sleeper) -> bool:
        """Return whether this one watches the database; if not, it sleeps until it is nudged, or calls again."""
        now = moments.monotonic()
        with self._lock:
            if self._leader is None or self._leader is one or now - self._seen_at > LEADS_FOR:
                self._leader, self._seen_at = one, now
                self._sleeping.pop(one, None)
                return True
            self._sleeping[one] = None
            return False

    def pass_on(self, one: Sleeper, *, to_all: bool = False) -> None:
        """Hand the lead to another consumer, if this one leads: it has something to do, or is closed.

        Parameters
        ----------
        to_all
            Wake all, because only each consumer by itself can find out whether there is something for it.
        """
        with self._lock:
            self._sleeping.pop(one, None)
            if self._leader is not one:
                return
            self._leader = None
            woken = list(self._sleeping)
            if not to_all:
                del woken[1:]
                self._leader, self._seen_at = (woken[0] if woken else None), moments.monotonic()
            for each in woken:
                self._sleeping.pop(each, None)
        for each in woken:
            each.nudge()


_idle = PerDatabaseCache[dict[Hashable, IdleConsumers]](lambda _: {})


def idle_consumers(backend: Backend, what: Hashable) -> IdleConsumers:
    """Return the consumers of this process that wait for the same messages of a database."""
    return _idle.of(backend).setdefault(what, IdleConsumers())
