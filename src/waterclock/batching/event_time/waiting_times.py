"""A queue of distinct event times, smallest first. It is cheap for times in order, and never slower than a heap."""

from __future__ import annotations

from heapq import heappop, heappush

from waterclock.time import MAX_NS

NEVER = MAX_NS + 1
"""Later than every event time."""


class WaitingTimes:
    """Event times (ns), whose smallest is known and can be taken.

    Times that come in order are in a list, the others in a heap: a push or pop costs at most the logarithm of their
    number, in any order of arrival.
    """

    __slots__ = ("_heap", "_run", "_taken", "first")

    def __init__(self) -> None:
        self._run: list[int] = []
        self._taken = 0  # the items before it are taken; removing them each time would move all others
        self._heap: list[int] = []
        self.first = NEVER  # the smallest time, ns; `NEVER` if empty

    def push(self, time: int) -> None:
        """Add a time that is not waiting yet."""
        run = self._run
        if not run or time > run[-1]:
            run.append(time)
        else:
            heappush(self._heap, time)
        if time < self.first:  # noqa: PLR1730  # min() costs three times as much, for every message
            self.first = time

    def pop(self) -> int:
        """Remove the smallest time."""
        time, heap, run = self.first, self._heap, self._run
        if heap and heap[0] == time:
            heappop(heap)
        else:
            self._taken += 1
            if 2 * self._taken > len(run):
                del run[: self._taken]
                self._taken = 0
        first = run[self._taken] if run else NEVER
        self.first = heap[0] if heap and heap[0] < first else first
        return time
