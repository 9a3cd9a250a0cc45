"""Idle consumers: of those that wait for the same messages in one process, one watches the database for all.

It leads. The others sleep until it passes the lead on, which it does when it finds something: the next one then claims,
and leads if that gives it nothing. So of many consumers as many wake as there are messages, and the database is asked
as often as for one.

In a table with exclusive groups the leader cannot tell what is due in the groups of others. There one of those that
sleep looks for all of them (`due_in`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import PerDatabaseCache

LEADS_FOR = 3.0
"""Seconds without a sign of the leader after which another one leads: its thread waits for something else."""


LOOK_EVERY = 1.0
"""Seconds between two looks at the groups of those that sleep: what another process puts there shows nowhere else."""


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
        self._looking = threading.Lock()
        self._looked_at = -math.inf
        self._asked_at: dict[str, float] = {}
        self._due_at: dict[str, float | None] = {}

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

    def due_in(self, name: str, look: Callable[[Sequence[str]], Mapping[str, float | None]]) -> float | None:
        """Return in how many seconds a consumer that sleeps has to claim; None if it has to find out by itself.

        Parameters
        ----------
        look
            Asks the database this for several consumers. It is called once in `LOOK_EVERY` seconds for all of them.
        """
        now = moments.monotonic()
        self._asked_at[name] = now
        if self._looking.acquire(blocking=False):  # else another one is looking, and this one asks again
            try:
                if now - self._looked_at >= LOOK_EVERY:
                    self._asked_at = {one: at for one, at in self._asked_at.copy().items() if now - at <= LEADS_FOR}
                    self._look(sorted(self._asked_at), look)
                    self._looked_at = now
                elif name not in self._due_at:
                    self._look([name], look)
            finally:
                self._looking.release()
        due_at = self._due_at.get(name, math.inf)
        return None if due_at is None else max(due_at - now, 0)

    def _look(self, names: Sequence[str], look: Callable[[Sequence[str]], Mapping[str, float | None]]) -> None:
        found = look(names)
        now = moments.monotonic()
        self._due_at = {
            **{one: at for one, at in self._due_at.items() if one in self._asked_at},
            **{one: None if due is None else now + due for one, due in found.items()},
        }


_idle = PerDatabaseCache[dict[Hashable, IdleConsumers]](lambda _: {})


def idle_consumers(backend: Backend, what: Hashable) -> IdleConsumers:
    """Return the consumers of this process that wait for the same messages of a database."""
    return _idle.of(backend).setdefault(what, IdleConsumers())
