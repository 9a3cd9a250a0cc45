"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time

from waterclock.time import Duration, Time, to_duration, to_time


class Clock:
    """Stands in for a database's clock: ``wc.connect(url, clock=Clock())``.

    Parameters
    ----------
    now
        Its first reading; None: now.
    """

    def __init__(self, now: Time | None = None) -> None:
        self._now = time.time_ns() if now is None else to_time(now, "now")

    def __call__(self) -> int:
        """Read it, ns since the epoch."""
        return self._now

    def move(self, duration: Duration) -> None:
        """Advance the clock by this time."""
        self._now += to_duration(duration)

    def set(self, now: Time) -> None:
        """Set it, also to an earlier time."""
        self._now = to_time(now, "now")
