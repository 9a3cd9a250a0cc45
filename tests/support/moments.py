"""Moments that tests decide, by clocks that they set and heartbeats that beat when they say so, or wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from waterclock._support.moments import Moments, replaced
from waterclock.tables.consumers.heartbeats.heartbeat import Heartbeat

PATIENCE = 30  # s; far more than is needed, where a machine is busy


def until(comes_true: Callable[[], object], *, pause: float = 0.001) -> None:
    """Wait for what another thread or process does, and look every ``pause`` s."""
    give_up_at = time.monotonic() + PATIENCE
    while not comes_true():
        assert time.monotonic() < give_up_at, "it does not come true"
        time.sleep(pause)


class ReadFrom(Moments):
    """Waits as the machine does, but reads another clock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    def monotonic_ns(self) -> int:
        return self._clock()


class SteppedHeartbeat(Heartbeat):
    """Beats only when a test asks it to, from the moment on that the test's clock (ns) shows then."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(beats=False)
        self._clock = clock

    def beat(self) -> int | None:
        ahead = self._clock() - time.monotonic_ns()
        with replaced(ReadFrom(lambda: time.monotonic_ns() + ahead)):
            return super().beat()


def later_each_time(step: int) -> Callable[[], int]:
    """Give a clock that is a step (ns) ahead of the machine's, and once more at each reading."""
    steps = count(1)
    return lambda: time.monotonic_ns() + next(steps) * step
