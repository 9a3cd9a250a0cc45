"""Detects a stalled window by the clock, or by the times of messages in a replay, which has no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from waterclock._support.quoting import quoted
from waterclock.batching.rate.rule import ERA, HORIZON, MOST_ERAS, MOST_UNMOVED, PACE, STALLED
from waterclock.errors import InvalidArgumentError

_SECOND = 1_000_000_000


class Elsewhere(NamedTuple):
    """Traffic outside the window: event times at most 1000 lengths apart."""

    # Event times, ns.
    oldest: int
    newest: int
    # How far its time has advanced, ns; a gap of more than three lengths counts as three, and counting stops at 10.
    covered: int
    calls: int  # how many calls brought it; two are enough
    mark: int  # the high-water mark before it came, ns

    def has_moved_on(self, batch_length: int) -> bool:
        """Return whether it has advanced by 10 batch lengths (ns) in more than one call."""
        return self.calls > 1 and self.covered >= STALLED * batch_length

    def keeps_pace(self, mark: int) -> bool:
        """Return whether the high-water mark, now at ``mark`` (ns), has advanced with it: then it is not a backlog."""
        return self.newest - self.oldest <= PACE * (mark - self.mark)


class StallWatch:
    """Watches one window in progress.

    Attributes
    ----------
    clock
        Returns the time in seconds.
    now, since
        Its reading at this call, and at the last batch's close or the first message after that.
    unmoved
        How many messages have joined the window since a batch closed or the high-water mark moved.
    elsewhere
        The implausible ones among them by era, the most recent last.
    """

    __slots__ = ("clock", "elsewhere", "now", "since", "unmoved")

    def __init__(self, clock: Callable[[], float]) -> None:
        if not callable(clock):
            raise InvalidArgumentError(f"clock must be a function that returns seconds, got {quoted(clock)}")
        self.clock = clock
        self.now = self.since = clock()
        self.unmoved = 0
        self.elsewhere: list[Elsewhere] = []

    def look(self) -> None:
        """Read the clock, once at the beginning of each call. A clock that jumped back counts from there."""
        self.now = now = self.clock()
        self.since = min(self.since, now)

    def rearm(self, rivalled_at: int | None = None) -> None:
        """Restart all counts; see `moved`."""
        self.since = self.now
        self.moved(rivalled_at)

    def moved(self, rivalled_at: int | None = None) -> None:
        """Restart the counts of messages since the high-water mark moved.

        Parameters
        ----------
        rivalled_at
            The mark (ns) of a window that other eras rival: traffic that keeps pace with it still counts. None for any
            other window.
        """
        self.unmoved = 0
        self.elsewhere = [] if rivalled_at is None else [e for e in self.elsewhere if e.keeps_pace(rivalled_at)]

    def is_contested(self, mark: int, batch_length: int) -> bool:
        """Return whether traffic elsewhere has advanced together with the high-water mark, now at ``mark`` (ns)."""
        return any(e.has_moved_on(batch_length) and e.keeps_pace(mark) for e in self.elsewhere)

    def overdue_at(self, batch_length: int) -> float:
        """When 10 batch lengths (ns) will have passed, s by ``clock``."""
        return self.since + STALLED * batch_length / _SECOND

    def is_overdue(self, batch_length: int) -> bool:
        """Return whether 10 batch lengths (ns) have passed."""
        return (self.now - self.since) * _SECOND >= STALLED * batch_length

    def is_stuck(self, implausible: list[int], joined: int, mark: int, batch_length: int) -> bool:
        """Record a call that did not move the mark, or a rival's; return whether the traffic is elsewhere.

        It is elsewhere if that of one era has advanced by 10 batch lengths in more than one call: a single call may
        bring a backlog. If more messages have joined the window than it should hold, it is stuck in any case.

        Parameters
        ----------
        implausible
            Event times (ns) that are of other eras or more than three lengths behind the window.
        joined
            How many messages joined the window.
        mark
            The high-water mark before the call, ns.
        batch_length
            ns.
        """
        self.unmoved += joined
        if implausible:
            for piece in _pieces(sorted(implausible), mark, batch_length):
                self._add(piece, batch_length)
            if any(e.has_moved_on(batch_length) for e in self.elsewhere):
                return True
        return self.unmoved >= MOST_UNMOVED

    def _add(self, piece: Elsewhere, batch_length: int) -> None:
        era = ERA * batch_length
        others: list[Elsewhere] = []
        for known in self.elsewhere:
            if piece.oldest - known.newest > era or known.oldest - piece.newest > era:
                others.append(known)
            else:
                piece = _joined(known, piece, batch_length)
        self.elsewhere = [*others, piece][-MOST_ERAS:]


def _pieces(ordered: list[int], mark: int, batch_length: int) -> Iterator[Elsewhere]:
    """Split at gaps that are wider than an era."""
    oldest = newest = ordered[0]
    covered = 0
    for time in ordered:
        if time - newest > ERA * batch_length:
            yield Elsewhere(oldest, newest, covered, 1, mark)
            oldest, covered = time, 0
        else:
            covered = min(covered + min(time - newest, HORIZON * batch_length), STALLED * batch_length)
        newest = time
    yield Elsewhere(oldest, newest, covered, 1, mark)


def _joined(known: Elsewhere, piece: Elsewhere, batch_length: int) -> Elsewhere:
    oldest, newest = min(known.oldest, piece.oldest), max(known.newest, piece.newest)
    covered = max(known.covered, piece.covered)
    if newest > known.newest:
        gap = min(max(piece.oldest - known.newest, 0), HORIZON * batch_length)
        moved = min(piece.covered + gap, newest - known.newest)
        covered = max(covered, min(known.covered + moved, STALLED * batch_length))
    return Elsewhere(oldest, newest, covered, 2, known.mark)
