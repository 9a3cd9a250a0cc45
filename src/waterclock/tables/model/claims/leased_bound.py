"""The lower bound of searches for leased messages, on a database that finds them by a clock (MariaDB).

Each leased message has the slot of time in which its lease was set. If the server's clock is set back, leases get slots
before the bound. So the bound is trusted only if the clock was not set, which each advance of the bound checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from waterclock._support import moments
from waterclock.tables.model.claims.bounds import CLOCK_STEP, BoundedSearch, ProvenBound, Snapshot
from waterclock.time import MIN_NS, NS_PER

SLOT = 2 * NS_PER["s"]

NAMED = 32
"""The most slots that a search names. Those before them are one range of the index, in which all keys are read."""

_TRUSTED_FOR = 6.0
"""Seconds for which a bound is trusted after the last look whether the clock was set, unless the clock is behind it.

If the clock is set back, leases get slots before the bound. Once the clock has caught up, nothing tells of that."""

_CLOCKS_DIFFER = 1.0  # seconds by which two clocks may differ after some seconds, or because a round trip took long

_MARGIN = 4
"""Slots before the bound that are counted, too. A clock that is set back by more does not catch up within
`_TRUSTED_FOR`."""

_KEPT = 24
"""Slots after which a message that is still leased gets the current slot, so that few are before the named ones."""


def slot_of(time: int) -> int:
    """Return the slot of a time, ns."""
    return max(0, time // SLOT)


def is_old(slot: int, now: int) -> bool:
    """Return whether a message that is still leased should get the current slot."""
    return slot < slot_of(now) - _KEPT


class ClockRead(NamedTuple):
    """A time of the server's clock, ns, that was read between two times of the monotonic clock."""

    began: float
    ended: float
    now: int

    def is_continued(self, later: ClockRead) -> bool:
        """Return whether the clock was not set, and a bound is trusted, until a later reading."""
        shortest, longest = later.began - self.ended, later.ended - self.began
        passed = (later.now - self.now) / NS_PER["s"]
        return longest <= _TRUSTED_FOR and longest - _CLOCKS_DIFFER <= passed <= shortest + _CLOCKS_DIFFER


class LeasedBound(ProvenBound):
    """The time before which no lease was set that still holds a message. Thread-safe.

    It is not saved: a new process cannot know whether the clock was set since, or whether another process passed
    leases while the table had no limit.
    """

    def __init__(self) -> None:
        super().__init__(MIN_NS)
        self.clock_read: ClockRead | None = None  # when the bound was last found to be true

    def check(self, read: ClockRead) -> None:
        """Forget the bound if the clock was set since the last check, or might have been."""
        if self.clock_read is None or not self.clock_read.is_continued(read):
            self.reset()
        self.clock_read = read  # only then, for other threads

    def found(self, search: BoundedSearch, slots: Sequence[int], now: int, *, waits: bool) -> None:
        """Note the first slots that searches found. If ``waits``, a statement waited for a lock: no bound advances."""
        if now < search.known:  # the server's clock was set back
            self.reset()
            return
        firsts = [now - CLOCK_STEP, *(slot * SLOT for slot in slots), *([search.known] if waits else [])]
        self.found_nothing(search, min(firsts), Snapshot(now))

    def values(self, now: int) -> Mapping[str, Any]:
        """Return the parameters of the statements of `leased_keys`, about the current time, ns."""
        low, last = self.value, slot_of(now) + 1
        first = _first_counted(low)
        slots = [*range(max(first, last + 1 - NAMED), last + 1)] or [last]
        named = {f"slot_{nth}": slots[min(nth, len(slots) - 1)] for nth in range(NAMED)}
        return {"leased_from": first, "slots": [one for one in slots if one >= slot_of(low)], **named}

    def is_trusted(self, first: int, now: int) -> bool:
        """Return whether a count from a slot on, at a time, found all leases; otherwise forget the bound."""
        read = self.clock_read
        is_old = read is None or moments.monotonic() - read.began > _TRUSTED_FOR
        if first and (is_old or slot_of(now) < first + _MARGIN):
            self.reset()
        # Another thread may have forgotten the bound since the count.
        return first <= _first_counted(self.value)


def _first_counted(low: int) -> int:
    return max(0, slot_of(low) - _MARGIN)
