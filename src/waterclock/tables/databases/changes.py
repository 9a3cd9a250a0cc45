"""Noticing that a table changed, so that a consumer need not wait for its poll interval."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Protocol

from waterclock._support import moments

_FIRST_LOOK = 0.002  # s
_GROWTH = 1.5
_SELDOM = 0.1  # s; ten looks a second cost a server next to nothing


class Stop:
    """A flag as `threading.Event` is one, whose setting also ends a wait for a socket. A signal handler may set it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        os.set_blocking(self._reader, False)

    def set(self) -> None:
        """Set the flag, and end the waits."""
        self._event.set()
        self.nudge()

    def is_set(self) -> bool:
        """Say whether the flag is set."""
        return self._event.is_set()

    @property
    def descriptor(self) -> int:
        """Can be read when a wait would end, so that one can wait for several flags."""
        return self._reader

    def nudge(self) -> None:
        """End a wait without setting the flag."""
        with suppress(BlockingIOError):  # a pipe that is full ends the wait as well
            os.write(self._writer, b"x")

    def wait(self, seconds: float, *descriptors: int) -> bool:
        """Wait until the flag is set, another thread nudges, or a descriptor can be read; say which it was.

        Returns
        -------
        bool
            Whether it ended before ``seconds`` were over.
        """
        return bool(self.wait_for(seconds, *descriptors))

    def wait_for(self, seconds: float, *descriptors: int) -> set[int]:
        """Wait like `wait`, and return which of the descriptors can be read; another one stands for the flag."""
        if self._event.is_set():
            return {self._reader}
        ready = moments.poll((self._reader, *descriptors), seconds)
        if self._reader in ready:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)
        return ready

    def __del__(self) -> None:
        # Not earlier: a thread that still has the flag might write to another file, which has the descriptor's number.
        os.close(self._reader)
        os.close(self._writer)


class Changes(Protocol):
    """Waits for changes of a table.

    Attributes
    ----------
    tells
        Whether a wait ends when something changed, and else goes on for as long as it may.
    """

    tells: bool

    def arm(self) -> bool:
        """Make sure that every commit from now on ends the next wait; False where that may not be so.

        Between arming and waiting, a consumer looks once more for what is due.
        """
        ...

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Return when something may have changed, when ``stop`` is set or nudged, or after ``seconds``.

        Returns
        -------
        bool
            Whether one of the first two is why; where no writer notifies, this says nothing of changes.
        """
        ...

    def ring(self, alarm: Stop) -> None:
        """Have changes nudge this flag, by which one thread can wait for several tables of a database."""
        ...

    def disarm(self) -> None:
        """Need no notifications for now: who has something to do looks by itself. Called often."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class Polling:
    """Looks again after a while that grows from wait to wait, for databases that tell nothing.

    What a consumer does between two waits while nothing happens takes less than the longest of them.
    """

    tells = False

    def __init__(self) -> None:
        self._interval = _FIRST_LOOK
        self._waited_at = 0.0

    def arm(self) -> bool:
        """Nothing to do: who looks at intervals misses nothing."""
        return True

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Wait; shortly where something happened since the last wait."""
        if moments.monotonic() - self._waited_at > _SELDOM:
            self._interval = _FIRST_LOOK
        ended = stop.wait(min(seconds, self._interval))
        self._interval = min(self._interval * _GROWTH, _SELDOM)
        self._waited_at = moments.monotonic()
        return ended

    def ring(self, alarm: Stop) -> None:
        """Nothing to do: who looks at intervals looks at all tables."""

    def disarm(self) -> None:
        """Look again shortly: something happened."""
        self._interval = _FIRST_LOOK

    def close(self) -> None:
        """Nothing to give back."""
