"""As `waterclock.batching.stall`, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

import numpy as np
from numba import njit

from waterclock.batching.rate_rule import EPOCH, HORIZON, MOST_EPOCHS, MOST_UNMOVED, STALLED
from waterclock.batching.track_kernel import EPOCHS, UNMOVED, Ints, Known, apart

# The columns of traffic elsewhere.
OLDEST, NEWEST_THERE, COVERED, CALLS, ELSEWHERE_COLUMNS = range(5)


@njit(error_model="numpy")
def _within(low: int, high: int, most: int) -> int:
    """Give how far apart two times are, but at most so far."""
    between = apart(low, high)
    return most if between > np.uint64(most) else int(between)


@njit(error_model="numpy")
def _add(oldest: int, newest: int, covered: int, length: int, known: Known) -> None:
    facts, elsewhere = known.facts, known.elsewhere
    epoch, enough = np.uint64(EPOCH * length), STALLED * length
    calls = 1
    others = 0
    for k in range(facts[EPOCHS]):
        from_, until = int(elsewhere[k, OLDEST]), int(elsewhere[k, NEWEST_THERE])
        if (oldest > until and apart(until, oldest) > epoch) or (from_ > newest and apart(newest, from_) > epoch):
            elsewhere[others, :] = elsewhere[k, :]
            others += 1
            continue
        before = int(elsewhere[k, COVERED])
        joined = max(covered, before)
        if newest > until:
            gap = _within(until, oldest, HORIZON * length) if oldest > until else 0
            joined = max(joined, min(before + _within(until, newest, covered + gap), enough))
        oldest, newest, covered, calls = min(oldest, from_), max(newest, until), joined, 2
    if others == MOST_EPOCHS:
        for k in range(1, others):
            elsewhere[k - 1, :] = elsewhere[k, :]
        others -= 1
    elsewhere[others, OLDEST], elsewhere[others, NEWEST_THERE] = oldest, newest
    elsewhere[others, COVERED], elsewhere[others, CALLS] = covered, calls
    facts[EPOCHS] = others + 1


@njit(error_model="numpy")
def _add_pieces(ordered: Ints, length: int, known: Known) -> None:
    oldest = newest = int(ordered[0])
    covered = 0
    for k in range(len(ordered)):
        time = int(ordered[k])
        if apart(newest, time) > np.uint64(EPOCH * length):
            _add(oldest, newest, covered, length, known)
            oldest, covered = time, 0
        else:
            covered = min(covered + _within(newest, time, HORIZON * length), STALLED * length)
        newest = time
    _add(oldest, newest, covered, length, known)


@njit(error_model="numpy")
def moved(known: Known) -> None:
    """As `StallWatch.moved`."""
    known.facts[UNMOVED] = known.facts[EPOCHS] = 0


@njit(error_model="numpy")
def is_stuck(times: Ints, joined: int, start: int, length: int, known: Known) -> bool:
    """As `StallWatch.is_stuck`, of a call's event times and the window at ``start`` that it came to."""
    facts = known.facts
    facts[UNMOVED] += joined
    near_from, epoch_until = start - HORIZON * length, start + length + EPOCH * length
    implausible = times[(times < near_from) | (times > epoch_until)]
    if len(implausible):
        _add_pieces(np.sort(implausible), length, known)
    for k in range(facts[EPOCHS]):
        if known.elsewhere[k, CALLS] > 1 and known.elsewhere[k, COVERED] >= STALLED * length:
            return True
    return bool(facts[UNMOVED] >= MOST_UNMOVED)
