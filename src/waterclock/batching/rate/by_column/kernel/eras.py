"""Measures distances between times, and decides at which times a window may begin; see `rule` and `window`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.rule import ERA, HORIZON, MOVING
from waterclock.time import MAX_NS, MIN_NS

from .arrays import Ints, internal


@internal
def apart(earlier: int, later: int) -> np.uint64:
    """Return the distance of two times; unsigned, since it may exceed the largest signed number."""
    # From int64 first: NumPy refuses to convert Python's negative integers, which the interpreted form passes.
    return np.uint64(np.int64(later)) - np.uint64(np.int64(earlier))


@internal
def plausible_range(times: Ints, length: int, moving: bool) -> tuple[int, int]:
    """As `rule.plausible_range`."""
    ordered = np.sort(times)
    oldest = newest = ordered[0]
    most = first = 0
    moves = False
    for k in range(1, ordered.size + 1):
        if k == ordered.size or apart(ordered[k - 1], ordered[k]) > np.uint64(HORIZON * length):
            also = moving and apart(ordered[first], ordered[k - 1]) >= np.uint64(MOVING * length)
            if (also and not moves) or (also == moves and k - first >= most):
                most, moves = k - first, also
                oldest, newest = ordered[first], ordered[k - 1]
            first = k
    return oldest, newest


@internal
def placed(anchor: int, length: int) -> int:
    """As `rule.placed`."""
    margin = 2 * ERA * length
    return min(max(anchor, MIN_NS + margin), MAX_NS - margin)


@internal
def era_until(start: int, length: int) -> int:
    """As `RateWindow.era_until`."""
    return min(start, MAX_NS - 2 * ERA * length) + length + ERA * length


@internal
def within(low: int, high: int, most: int) -> int:
    """Return the distance of two times, but at most this much."""
    between = apart(low, high)
    return most if between > np.uint64(most) else int(np.int64(between))  # signed, or Numba makes it a float


@internal
def in_era(time: int, start: int, length: int) -> bool:
    return start - ERA * length <= time <= era_until(start, length)
