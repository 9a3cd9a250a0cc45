"""The clock of a database, as a test moves it."""

from __future__ import annotations

import time

from waterclock.time import Duration, to_duration


class MovableClock:
    """Stands still until it is moved or set. Starts now unless given, because plain SQL reads the real clock."""

    def __init__(self, now: int | None = None) -> None:
        self.now = time.time_ns() if now is None else now

    def __call__(self) -> int:
        return self.now

    def move(self, duration: Duration) -> None:
        self.now += to_duration(duration)
