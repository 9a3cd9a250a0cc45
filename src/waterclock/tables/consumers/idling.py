"""Watches the database once for all idle consumers of a process that wait for the same messages.

One of the consumers, the leader, watches. When the leader has claimed a message, it is busy, so another consumer
becomes the leader. The new leader first tries to claim. If it gets no message, it watches. So one message does not wake
all consumers, and the database gets only as many queries as one consumer would send. In a table with exclusive groups,
the leader also looks up when each of the other consumers must claim next. It wakes a consumer that must claim earlier
than planned.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import PerDatabaseCache

LEADS_FOR = 3.0
"""Seconds without a sign of the leader before another one leads: its thread may be waiting for something else."""


LOOK_EVERY = 1.0
"""Seconds between two checks of the leader for the others: nothing else may report messages from other processes."""

_EARLIER = 0.05
"""A sleeper is woken if its claim is due this many seconds earlier than it knows: checks differ by milliseconds."""


class Sleeper(Protocol):
    """A consumer that may wait for another one."""

    def nudge(self) -> None:
        """End its wait."""
        ...


@dataclass(frozen=True, slots=True)
class OwnDue:
    """The messages that a consumer of exclusive groups has to claim."""

    seconds: float  # in how many seconds it has to claim, for its own groups or its lease
    has_room: bool  # whether it may get more groups


class IdleConsumers:
    """The consumers of a process that wait for the same messages. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close a consumer while its thread holds it
        self._leader: Sleeper | None = None
        self._seen_at = 0.0
        self.purged_at = -math.inf  # when one of them last began to purge the table, in seconds of the monotonic clock
        # Weak references, so that consumers that are dropped without being closed are collected.
        self._sleeping: WeakKeyDictionary[Sleeper, None] = WeakKeyDictionary()
        self._due_at: WeakKeyDictionary[Sleeper, tuple[str, float]] = WeakKeyDictionary()
        self._looked_at = -math.inf

    def leads(self, one: Sleeper) -> bool:
        """Return whether this one watches the database; if not, it sleeps until nudged, or calls again."""
        now = moments.monotonic()
        with self._lock:
            if self._leader is None or self._leader is one or now - self._seen_at > LEADS_FOR:
                self._leader, self._seen_at = one, now
                self._forget(one)
                return True
            self._sleeping[one] = None
            return False

    def pass_on(self, one: Sleeper, to: Sleeper | None = None) -> None:
        """Pass the lead to another consumer if this one leads, because it is busy or closed.

        ``to`` is the next leader, if it still sleeps.
        """
        with self._lock:
            self._forget(one)
            if self._leader is not one:
                return
            following = to if to in self._sleeping else next(iter(self._sleeping), None)
            self._leader, self._seen_at = following, moments.monotonic()
            if following is not None:
                self._forget(following)
        if following is not None:
            following.nudge()

    def expect(self, one: Sleeper, name: str, seconds: float) -> None:
        """Note that a sleeper has to claim in so many seconds. The leader wakes it if that becomes earlier."""
        with self._lock:
            if one in self._sleeping:
                self._due_at[one] = name, moments.monotonic() + seconds

    def due_in(self, one: Sleeper) -> float:
        """Return in how many seconds a sleeper has to claim, according to the last look-up."""
        with self._lock:
            _, due_at = self._due_at.get(one, ("", -math.inf))
        return max(0.0, due_at - moments.monotonic())

    def to_look_for(self, *, changed: bool) -> Collection[str]:
        """Return the names of the sleepers whose next claim the leader has to look up.

        ``changed`` says whether something has changed; if not, the leader checks once every `LOOK_EVERY`.
        """
        now = moments.monotonic()
        with self._lock:
            if not changed and now - self._looked_at < LOOK_EVERY:
                return ()
            self._looked_at = now
            return {name for name, _ in self._due_at.values()}

    def note_due(self, found: Mapping[str, OwnDue]) -> Sleeper | None:
        """Wake the sleepers that have to claim earlier than they know; return one that has room, if any."""
        now, woken, has_room = moments.monotonic(), list[Sleeper](), None
        with self._lock:
            for one, (name, known) in list(self._due_at.items()):
                if name not in found:
                    continue
                due_at = now + found[name].seconds
                if due_at < known - _EARLIER:
                    woken.append(one)
                    self._forget(one)
                else:
                    self._due_at[one] = name, due_at
                    has_room = one if found[name].has_room else has_room
        for each in woken:
            each.nudge()
        return has_room

    def _forget(self, one: Sleeper) -> None:
        self._sleeping.pop(one, None)
        self._due_at.pop(one, None)


_idle = PerDatabaseCache[dict[Hashable, IdleConsumers]](lambda _: {})


def idle_consumers(backend: Backend, what: Hashable) -> IdleConsumers:
    """Return the consumers of this process that wait for the same messages of a database."""
    return _idle.of(backend).setdefault(what, IdleConsumers())
