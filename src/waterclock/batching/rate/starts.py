"""The starts of earlier windows. A start identifies a batch, so every window needs a different start.

Each window usually starts a whole number of window lengths after the one before. So starts are stored as runs: a first
start, a last start, and a step. After a stall, a window may be placed before existing windows. The windows after the
inserted window must not use an existing start again. The number of runs is bounded: if there are too many runs, the
earliest runs are merged into one run, in which every start counts as taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from waterclock.time import MIN_NS

MOST_RUNS = 64
"""Maximum number of runs. Only a stall that moves back, a new batch length and a boundary begin one."""


@dataclass(slots=True)
class StartRun:
    """Starts of windows, ns: ``first``, then every ``step`` up to ``last``."""

    first: int
    last: int
    step: int


class Starts:
    """The starts of all windows of a source."""

    __slots__ = ("furthest", "runs")

    def __init__(self, furthest: int, runs: list[StartRun]) -> None:
        self.furthest = furthest  # the latest of them, ns; later starts are free
        self.runs = runs  # in the order in which they began; the last one continues

    def free(self, start: int) -> int:
        """Find the first start (ns) at or after ``start`` that no window had."""
        if start > self.furthest:
            return start
        for _ in range(2 * MOST_RUNS):  # each run occupies one time in ``step``: more are needed only below 64 ns
            taken = next((r for r in self.runs if r.first <= start <= r.last and not (start - r.first) % r.step), None)
            if taken is None:
                return start
            start = taken.last + 1 if taken.step == 1 else start + 1
        return self.furthest + 1

    def begin(self, start: int, step: int) -> None:
        """Record a window that begins at a free ``start``, and its length, ns."""
        self.furthest = max(self.furthest, start)
        if self.runs:
            run = self.runs[-1]
            if run.step == step and start > run.last and not (start - run.last) % step:
                run.last = start
                return
        self.runs.append(StartRun(start, start, step))
        if len(self.runs) > MOST_RUNS:
            self._forget()

    def remember(self, start: int) -> None:
        """Record a batch that began at ``start`` (ns) before the first window."""
        self.runs.insert(0, StartRun(start, start, 1))

    def _forget(self) -> None:
        last = MIN_NS
        for _ in range(2):
            earliest = min(self.runs, key=lambda run: run.last)
            self.runs.remove(earliest)
            last = earliest.last
        self.runs.insert(0, StartRun(MIN_NS, last, 1))
