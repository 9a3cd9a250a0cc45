"""Waits until a table changes, so that a consumer need not wait for its whole poll interval."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Protocol

from waterclock._support import moments

_FIRST_LOOK = 0.002  # s
_GROWTH = 1.5
_SELDOM = 0.1  # s; ten checks a second cost a server almost nothing


class Stop:
    """A flag like `threading.Event` that also ends a wait for a socket. A signal handler may set it."""

    def __init__(self) -> None:
        self._is_set = False  # no threading.Event, whose lock a signal handler could wait for forever
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        os.set_blocking(self._reader, False)

    def set(self) -> None:
        """Set the flag, and end the waits."""
        self._is_set = True
        self.nudge()

    def is_set(self) -> bool:
        return self._is_set

    @property
    def descriptor(self) -> int:
        """Return a descriptor that becomes readable when a wait would end, to wait for several flags."""
        return self._reader

    def nudge(self) -> None:
        """End a wait without setting the flag."""
        with suppress(BlockingIOError):  # a full pipe ends the wait as well
            os.write(self._writer, b"x")

    def wait(self, seconds: float, *descriptors: int) -> bool:
        """Wait until the flag is set, another thread nudges, or a descriptor is readable.

        Returns whether it ended before ``seconds`` were over.
        """
        return bool(self.wait_for(seconds, *descriptors))

    def wait_for(self, seconds: float, *descriptors: int) -> set[int]:
        """Wait like `wait`, and return the readable descriptors; an additional one represents the flag."""
        if self._is_set:
            return {self._reader}
        ready = moments.poll((self._reader, *descriptors), seconds)
        if self._reader in ready:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)
        return ready

    def __del__(self) -> None:
        # Not earlier: a thread that still has the flag might write to another file with the same descriptor.
        os.close(self._reader)
        os.close(self._writer)


class Changes(Protocol):
    """Wait for changes of a table."""

    tells: bool  # whether a wait ends only after a change

    @property
    def row_unchanged_since(self) -> float:
        """Return since when every change of the table's row in the catalogue is reported, and none was.

        In seconds of the monotonic clock; infinity if changes are not reported.
        """
        ...

    def arm(self) -> bool:
        """Ensure that every commit from now on ends the next wait; return False if that is not certain.

        Between arming and waiting, a consumer checks once more for due messages.
        """
        ...

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Return when something may have changed, when ``stop`` is set or nudged, or after ``seconds``.

        Returns whether one of the first two is the reason; without notifications, True does not imply a change.
        """
        ...

    def ring(self, alarm: Stop) -> None:
        """Nudge this flag on changes, so that one thread can wait for several tables of a database."""
        ...

    def disarm(self) -> None:
        """Turn notifications off, because a busy consumer polls by itself. Called often."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Polling:
    """Poll at intervals that grow from wait to wait, for databases without notifications.

    An idle consumer's work between two waits takes less than the longest interval.
    """

    tells = False
    row_unchanged_since = math.inf

    def __init__(self) -> None:
        self._interval = _FIRST_LOOK
        self._waited_at = 0.0

    def arm(self) -> bool:
        """Do nothing: polling misses nothing."""
        return True

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Wait; only briefly if something changed since the last wait."""
        if moments.monotonic() - self._waited_at > _SELDOM:
            self._interval = _FIRST_LOOK
        ended = stop.wait(min(seconds, self._interval))
        self._interval = min(self._interval * _GROWTH, _SELDOM)
        self._waited_at = moments.monotonic()
        return ended

    def ring(self, alarm: Stop) -> None:
        """Do nothing: polling covers all tables."""

    def disarm(self) -> None:
        """Poll soon again, because something changed."""
        self._interval = _FIRST_LOOK

    def close(self) -> None:
        """Do nothing."""
