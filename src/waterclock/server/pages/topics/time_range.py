"""The time range that a page shows, and links that move it or change its length."""

from __future__ import annotations

from typing import Any, NamedTuple

from waterclock.time import MAX_NS, MIN_NS, format_duration, format_time

SHORTEST = 1_000_000
"""Shortest range, ns: a millisecond. The page's JSON distinguishes messages that are closer together."""


class TimeRange(NamedTuple):
    """A range of time, ns; ``start`` is before ``end``."""

    start: int
    end: int

    @classmethod
    def around(cls, middle: int, length: int) -> TimeRange:
        """Return the range of a length around a time, within int64."""
        start = min(max(middle - length // 2, MIN_NS), MAX_NS - length)
        return cls(start, start + length)

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def middle(self) -> int:
        return self.start + self.length // 2

    def at(self, part: float) -> int:
        """Return the time at a fraction of the range, from 0 to 1."""
        return self.start + round(self.length * part)

    def data(self) -> dict[str, str]:
        """Return the range as JSON."""
        return {"since": format_time(self.start), "until": format_time(self.end)}

    def moves(self) -> list[dict[str, Any]]:
        """Return the ranges that are one step away, each with a key of the keyboard."""
        half, double = max(self.length // 2, SHORTEST), min(self.length * 2, MAX_NS)
        ranges = {
            ("←", "Earlier"): TimeRange.around(self.middle - self.length // 2, self.length),
            ("+", "Zoom in"): TimeRange.around(self.middle, half),
            ("-", "Zoom out"): TimeRange.around(self.middle, double),
            ("→", "Later"): TimeRange.around(self.middle + self.length // 2, self.length),
        }
        return [{"key": key, "name": name, **to.data()} for (key, name), to in ranges.items()]

    def lengths(self, choices: tuple[int, ...]) -> list[dict[str, str]]:
        """Return ranges of other lengths around the same time."""
        return [
            {"length": format_duration(length), **TimeRange.around(self.middle, length).data()} for length in choices
        ]
