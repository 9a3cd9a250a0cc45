"""Records the ids of a source whose batches have closed, so that no id is batched twice."""

from __future__ import annotations

from bisect import bisect_right

MOST_RUNS = 10_000
"""Maximum number of separate runs of consecutive ids. A missing id, or a step between ids, begins one."""


class TakenIds:
    """The ids of closed batches.

    Attributes
    ----------
    firsts, lasts
        The first and the last id of each run of consecutive ids, in order.
    """

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number) - 1
        return place >= 0 and number <= self.lasts[place]

    @property
    def missing(self) -> int:
        """How many ids lie between runs."""
        return sum(first - last - 1 for first, last in zip(self.firsts[1:], self.lasts, strict=False))

    def add(self, number: int) -> None:
        """Record the id of a batch."""
        if number in self:  # runs around it were merged while it was open
            return
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
