"""Converts between Spark's watermarks, in milliseconds, and receive clocks, in nanoseconds.

A watermark promises that no later message has an earlier receive clock.
"""

from __future__ import annotations

from waterclock.time import MAX_NS, MIN_NS

NS_PER_MS = 1_000_000

END = MAX_NS // NS_PER_MS + 1
"""A watermark after all times."""


def promised(watermark: int) -> int:
    """Return the receive clock that a watermark promises; 0 promises nothing."""
    return min(watermark * NS_PER_MS, MAX_NS) if watermark > 0 else MIN_NS


def watermark_of(clock: int) -> int:
    """Return the last watermark that promises no more than a receive clock."""
    return max(clock // NS_PER_MS, 0)


def watermark_after(time: int) -> int:
    """Return the first watermark that promises a receive clock after a time."""
    return min(time, MAX_NS - 1) // NS_PER_MS + 1
