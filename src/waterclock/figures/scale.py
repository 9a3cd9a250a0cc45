"""Maps time to pixels, and chooses the ticks of an axis and their labels."""

from __future__ import annotations

from dataclasses import dataclass

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_UNITS = (
    ("d", _DAY),
    ("h", 3_600 * _SECOND),
    ("min", 60 * _SECOND),
    ("s", _SECOND),
    ("ms", 1_000_000),
    ("µs", 1_000),
    ("ns", 1),
)
_CLOCK_STEPS = tuple(
    seconds * _SECOND
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps time to pixels, linearly."""

    # Time at the left and at the right edge, ns; start is before end.
    start: int
    end: int
    # The edges, px.
    left: float
    right: float

    def x(self, time: int) -> float:
        """Return the place of ``time`` (ns), px; a time outside maps to the nearer edge."""
        # Subtracted as ints: a float cannot hold nanoseconds since 1970 exactly.
        inside = min(max(time, self.start), self.end) - self.start
        return self.left + (self.right - self.left) * inside / (self.end - self.start)

    def holds(self, time: int) -> bool:
        """Return whether ``time`` (ns) lies within the edges, both included."""
        return self.start <= time <= self.end


def tick_step(span: int, most: int) -> int:
    """Choose the smallest customary step (ns) that divides ``span`` (ns) into at most ``most`` parts.

    Below a second and above a day it is 1, 2 or 5 times a power of ten; in between it is a customary fraction of an
    hour or day.
    """
    least = max(1, -(-span // most))
    if _SECOND // 2 < least <= _DAY:
        return next(step for step in _CLOCK_STEPS if step >= least)
    power = 1 if least < _DAY else _DAY
    while 5 * power < least:
        power *= 10
    return next(factor * power for factor in (1, 2, 5) if factor * power >= least)


def tick_label(elapsed: int, step: int) -> str:
    """Write a length of time (ns) in the largest unit that divides ``step`` (ns): ``"250 ms"``."""
    name, unit = next((name, unit) for name, unit in _UNITS if step % unit == 0)
    return f"{elapsed // unit} {name}"
