"""As `waterclock.batching.rate.stall`, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

import numpy as np
from numba import njit

from waterclock.batching.rate.rule import EPOCH, HORIZON, MOST_EPOCHS, MOST_UNMOVED, STALLED
from waterclock.batching.rate.stream_kernel import ELSEWHERE_COLUMNS, ELSEWHERE_FROM, EPOCHS, UNMOVED, Ints, apart

# Where the other facts of traffic elsewhere stand, behind the oldest event time.
_NEWEST, _COVERED, _CALLS = 1, 2, 3


@njit(error_model="numpy")
def _within(low: int, high: int, most: int) -> int:
    """Give how far apart two times are, but at most so far."""
    between = apart(low, high)
    return most if between > np.uint64(most) else int(between)


@njit(error_model="numpy")
def _move(from_: int, to: int, facts: Ints) -> None:
    for column in range(ELSEWHERE_COLUMNS):
        facts[to + column] = facts[from_ + column]


@njit(error_model="numpy")
def _add(oldest: int, newest: int, covered: int, length: int, facts: Ints) -> None:
    epoch, enough = np.uint64(EPOCH * length), STALLED * length
    calls = 1
    place = ELSEWHERE_FROM  # where the next one stays
    for k in range(facts[EPOCHS]):
        known = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k
        from_, until = int(facts[known]), int(facts[known + _NEWEST])
        if (oldest > until and apart(until, oldest) > epoch) or (from_ > newest and apart(newest, from_) > epoch):
            _move(known, place, facts)
            place += ELSEWHERE_COLUMNS
            continue
        before = int(facts[known + _COVERED])
        joined = max(covered, before)
        if newest > until:
            gap = _within(until, oldest, HORIZON * length) if oldest > until else 0
            joined = max(joined, min(before + _within(until, newest, covered + gap), enough))
        oldest, newest, covered, calls = min(oldest, from_), max(newest, until), joined, 2
    if place == ELSEWHERE_FROM + ELSEWHERE_COLUMNS * MOST_EPOCHS:
        place = ELSEWHERE_FROM
        for _ in range(1, MOST_EPOCHS):
            _move(place + ELSEWHERE_COLUMNS, place, facts)
            place += ELSEWHERE_COLUMNS
    facts[place], facts[place + _NEWEST], facts[place + _COVERED], facts[place + _CALLS] = (
        oldest,
        newest,
        covered,
        calls,
    )
    facts[EPOCHS] = (place - ELSEWHERE_FROM) // ELSEWHERE_COLUMNS + 1


@njit(error_model="numpy")
def _add_pieces(ordered: Ints, length: int, facts: Ints) -> None:
    oldest = newest = int(ordered[0])
    covered = 0
    for k in range(len(ordered)):
        time = int(ordered[k])
        if apart(newest, time) > np.uint64(EPOCH * length):
            _add(oldest, newest, covered, length, facts)
            oldest, covered = time, 0
        else:
            covered = min(covered + _within(newest, time, HORIZON * length), STALLED * length)
        newest = time
    _add(oldest, newest, covered, length, facts)


@njit(error_model="numpy")
def is_stuck(times: Ints, first: int, stop: int, start: int, length: int, facts: Ints) -> bool:
    """As `StallWatch.is_stuck`, of the event times of a call and the window at ``start`` that it came to.

    How many messages joined is counted already.
    """
    near_from, epoch_until = start - HORIZON * length, start + length + EPOCH * length
    count = 0
    for message in range(first, stop):
        count += times[message] < near_from or times[message] > epoch_until
    if count:
        implausible = np.empty(count, np.int64)
        count = 0
        for message in range(first, stop):
            if times[message] < near_from or times[message] > epoch_until:
                implausible[count] = times[message]
                count += 1
        _add_pieces(np.sort(implausible), length, facts)
        for k in range(facts[EPOCHS]):
            known = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k
            if facts[known + _CALLS] > 1 and facts[known + _COVERED] >= STALLED * length:
                return True
    return bool(facts[UNMOVED] >= MOST_UNMOVED)
