"""The ids of a source that are already in batches, so that no id is batched twice."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from waterclock.batching.batch import RejectReason

MOST_RUNS = 10_000
"""Maximum number of separate runs of consecutive ids. A missing id, or a step between ids, begins one."""


class TakenIds:
    """The ids of returned batches.

    Attributes
    ----------
    firsts, lasts
        The first and the last id of each run of consecutive ids, in order.
    early
        For batches returned before their closing time: that time, ns, and their streams, by id. Until then QoS 1 may
        redeliver their messages.
    """

    __slots__ = ("early", "firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.early: dict[int, tuple[int, frozenset[str]]] = {}

    def verdict(self, number: int, stream: str, clock: int) -> RejectReason | None:
        """Return why a message received at a time (ns) is rejected; None if its id is new."""
        place = bisect_right(self.firsts, number) - 1
        if place < 0 or self.lasts[place] < number:
            return None
        until, streams = self.early.get(number, (clock - 1, frozenset[str]()))
        return "duplicate" if clock <= until and stream in streams else "late"

    def add(self, number: int, until: int, streams: Iterable[str] | None, clock: int) -> None:
        """Record the id of a batch and, if it is returned before its time (ns), its streams."""
        while self.early:
            oldest = next(iter(self.early))
            if self.early[oldest][0] >= clock:
                break
            del self.early[oldest]
        if streams is not None and until >= clock:
            self.early[number] = until, frozenset(streams)
        firsts, lasts = self.firsts, self.lasts
        place = bisect_right(firsts, number)
        follows = place > 0 and lasts[place - 1] == number - 1
        precedes = place < len(firsts) and firsts[place] == number + 1
        if follows and precedes:
            lasts[place - 1] = lasts.pop(place)
            del firsts[place]
        elif follows:
            lasts[place - 1] = number
        elif precedes:
            firsts[place] = number
        else:
            firsts.insert(place, number)
            lasts.insert(place, number)
            if len(firsts) > MOST_RUNS:
                del firsts[1], lasts[0]
