"""Tells when a window has stalled: by the clock, or where a replay has none, by the messages' own times."""

from __future__ import annotations

from collections.abc import Callable

from waterclock.batching.rate_rule import HORIZON, STALLED

_SECOND = 1_000_000_000


class StallWatch:
    """Watches one window in progress.

    Attributes
    ----------
    clock
        Seconds that pass.
    since
        When a batch last closed, or the first message after it came, by ``clock``.
    astray
        First and newest event time (ns) of the calls that brought implausible messages only, one after the other; None
        where the last call brought others.
    """

    __slots__ = ("astray", "clock", "since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.since = clock()
        self.astray: tuple[int, int] | None = None

    def rearm(self) -> None:
        """Begin to count anew."""
        self.since = self.clock()
        self.astray = None

    def overdue_at(self, batch_length: int) -> float:
        """When 10 batch lengths (ns) will have passed, s by ``clock``."""
        return self.since + STALLED * batch_length / _SECOND

    def is_overdue(self, batch_length: int) -> bool:
        """Tell whether 10 batch lengths (ns) have passed. A clock that jumped back counts from there."""
        now = self.clock()
        self.since = min(self.since, now)
        return (now - self.since) * _SECOND >= STALLED * batch_length

    def is_astray(self, event_time: int, batch_length: int) -> bool:
        """Tell whether implausible messages alone have come for 10 batch lengths of their own time.

        Parameters
        ----------
        event_time
            Newest (ns) of a call whose messages are all of other epochs or more than three lengths behind the window.
        batch_length
            ns.
        """
        first, newest = self.astray or (event_time, event_time)
        if abs(event_time - newest) > HORIZON * batch_length:
            first = newest = event_time
        newest = max(newest, event_time)
        self.astray = (first, newest)
        return newest - first >= STALLED * batch_length
