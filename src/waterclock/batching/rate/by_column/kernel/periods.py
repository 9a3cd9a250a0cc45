"""Computes the pulse grids, rates and periods of streams; see `pulse_grid` and `period`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.period import LONGEST_DIFFERENCE, MIN_DIFFERENCES, STABLE_DIFFERENCES
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE

from .arrays import Ints, Values, internal

SECOND = 1_000_000_000
_NEAR = 8


@internal
def earliest(origin: int, rate: int, start: int, back: int) -> int:
    """`PulseGrid.earliest` of the pulse ``back`` before the first of the window at ``start``, without overflow."""
    if rate < 0:
        period = -rate
        number = (start - origin) // period
        if start - origin - number * period > min(DRIFT_TOLERANCE, period // 2):
            number += 1
        return origin - (1 - 2 * (number - back)) * period // 2
    second = (start - origin) // SECOND
    product = (start - origin - second * SECOND) * rate
    number = product // SECOND
    if product - number * SECOND > min(DRIFT_TOLERANCE * rate, SECOND // 2):
        number += 1
    return origin + second * SECOND - (1 - 2 * (number - back)) * SECOND // (2 * rate)


@internal
def _is_near(raw: float, rate: int) -> bool:
    return abs(raw - rate) <= max(0.1 * rate, 0.1)


@internal
def _sorted(values: Values, count: int) -> Values:
    """Sort the first few values: to compile a further form of NumPy's sort takes seconds."""
    ordered = np.empty_like(values[:count])
    for k in range(count):
        place = k
        while place > 0 and ordered[place - 1] > values[k]:
            ordered[place] = ordered[place - 1]
            place -= 1
        ordered[place] = values[k]
    return ordered


@internal
def _period(ordered: Ints, double: int) -> tuple[float, int]:
    per_pulse = np.empty(ordered.size, np.float64)
    count = at.ZERO
    for difference in ordered:
        periods = (4 * difference + double) // (2 * double)
        if periods >= 1:
            per_pulse[count] = difference / periods
            count += 1
    per_pulse = _sorted(per_pulse, count)
    period = (per_pulse[(count - 1) // 2] + per_pulse[count // 2]) / 2
    fitting = 0
    for difference in ordered:
        off = abs(difference - period * max(1, int(difference / period + 0.5)))
        fitting += _NEAR * off <= period
    return period, fitting


@internal
def _obvious(ring: Ints, count: int) -> int:
    """Return the rate if it does not depend on which difference is the median; 0 if it does."""
    shortest = longest = ring[0]
    for k in range(1, count):
        shortest, longest = min(shortest, ring[k]), max(longest, ring[k])
    if _NEAR * (longest - shortest) > shortest:
        return 0  # some differences may span several periods
    slow, fast = SECOND / longest, SECOND / shortest
    rate = int(slow + 0.5)
    return rate if rate == int(fast + 0.5) and _is_near(slow, rate) and _is_near(fast, rate) else 0


@internal
def estimate(ring: Ints, count: int, current: int) -> int:
    """As `StreamPeriodEstimator.rate_after`; 0 for None."""
    if count < MIN_DIFFERENCES:
        return 0
    rate = _obvious(ring, count)
    if rate:
        return rate
    ordered = _sorted(ring, count)
    double = ordered[(count - 1) // 2] + ordered[count // 2]
    period, fitting = double / 2, count
    if _NEAR * (double - 2 * ordered[0]) > double or _NEAR * (2 * ordered[count - 1] - double) > double:
        period, fitting = _period(ordered, double)
        if 2 * fitting < count:
            other, other_fitting = _period(ordered, 2 * ordered[count // 4])
            if 4 * other_fitting >= 3 * count:
                period, fitting = other, other_fitting
    raw = SECOND / period
    if current and 4 * fitting < 3 * count and _is_near(raw, current):
        return current
    rate = int(raw + 0.5)
    return rate if rate >= 1 and _is_near(raw, rate) else 0


@internal
def own_period(ring: Ints, count: int) -> int:
    """As `StreamPeriodEstimator.own_period`; 0 for None."""
    if count < STABLE_DIFFERENCES:
        return 0
    ordered = _sorted(ring, count)
    if ordered[count - 1] == LONGEST_DIFFERENCE:
        return 0
    guess, _ = _period(ordered, ordered[(count - 1) // 2] + ordered[count // 2])
    total = pulses = fitting = 0
    for difference in ordered:
        total += difference
        pulses += max(1, int(difference / guess + 0.5))
    period = total // pulses
    for difference in ordered:
        off = abs(difference - period * max(1, int(difference / guess + 0.5)))
        fitting += _NEAR * off <= period
    return period if 0 < period <= SECOND and 8 * fitting >= 7 * count else 0
