"""What batching by rate knows of each stream, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from waterclock.batching.rate.period import KEPT_DIFFERENCES, MIN_DIFFERENCES
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE
from waterclock.batching.rate.rule import EPOCH, HORIZON, MOST_EPOCHS, MOVING
from waterclock.batching.rate.starts import MOST_RUNS
from waterclock.time import MAX_NS, MIN_NS

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]  # unsigned, because Numba then leaves out the test for negative indices

# The columns of a track.
(
    MAY_GATE,
    TRACKED,
    NEWEST,
    KEPT,
    NEXT_KEPT,
    ORIGIN,
    RATE,
    ABSENT_BATCHES,
    FIRST,
    PRESENT,
    SATISFIED,
    OVER_FROM,
    LAST_FROM,
    FAR_FROM,
    NOTICE_FROM,
    SETTLED,
    ROOT,
    PILED,
    PILE_NEWEST,
    PILE_LAST,
    TRACK_COLUMNS,
) = range(21)

# What is known beside the tracks.
(
    BEGUN,
    WINDOW_START,
    HIGH_WATER,
    STRAYS,
    FURTHEST,
    SETBACKS,
    UNMOVED,
    EPOCHS,
    RUNS,
    GATING,
    CONTRIBUTING,
    WAITING,
    ALL_PILED,
    HELD_UNTIL,
    JOINED,
    ACTIVE_FROM,
    BATCHES,
    LENGTH,
    TIMEOUT_NS,
    NEXT_LENGTH,
    NEXT_TIMEOUT,
    SINCE,
    LOOKED,
    COMPILED_FROM,
    FACTS,
) = range(25)

# Behind them, in the same array, since each further one costs at every call: the rows of what is elsewhere and of runs.
ELSEWHERE_FROM = FACTS
ELSEWHERE_COLUMNS = 4
RUNS_FROM = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * MOST_EPOCHS
RUN_COLUMNS = 3
ALL_FACTS = RUNS_FROM + RUN_COLUMNS * (MOST_RUNS + 1)

NONE = -1
NEVER = MAX_NS
BEFORE_ALL = MIN_NS

_SECOND = 1_000_000_000
_NEAR = 8


class Known(NamedTuple):
    """All but messages; ``tracks`` and ``rings`` have a row for each stream, and a last one for those that ride."""

    facts: Ints
    tracks: Table
    rings: Table


class Waiting(NamedTuple):
    """By message: its event time, its children in the pile it waits in, and the track it waits for, or NONE."""

    times: Ints
    left: Rows
    right: Rows
    waits_for: Rows


@njit(error_model="numpy")
def earliest(origin: int, rate: int, start: int, back: int) -> int:
    """`PulseGrid.earliest` of the pulse ``back`` before the first of the window at ``start``; by seconds, to fit."""
    second = (start - origin) // _SECOND
    product = (start - origin - second * _SECOND) * rate
    number = product // _SECOND
    if product - number * _SECOND > min(DRIFT_TOLERANCE * rate, _SECOND // 2):
        number += 1
    return origin + second * _SECOND - (1 - 2 * (number - back)) * _SECOND // (2 * rate)


@njit(error_model="numpy")
def _is_near(raw: float, rate: int) -> bool:
    return abs(raw - rate) <= max(0.1 * rate, 0.1)


@njit(error_model="numpy")
def _period(ordered: Ints, double: int) -> tuple[float, int]:
    per_pulse = np.empty(ordered.size, np.float64)
    count = 0
    for difference in ordered:
        periods = (4 * difference + double) // (2 * double)
        if periods >= 1:
            per_pulse[count] = difference / periods
            count += 1
    per_pulse = np.sort(per_pulse[:count])
    period = (per_pulse[(count - 1) // 2] + per_pulse[count // 2]) / 2
    fitting = 0
    for difference in ordered:
        off = abs(difference - period * max(1, int(difference / period + 0.5)))
        fitting += _NEAR * off <= period
    return period, fitting


@njit(error_model="numpy")
def _obvious(ring: Ints, count: int) -> int:
    """Find the rate where it does not depend on which difference is the median; 0 where it does."""
    shortest = longest = ring[0]
    for k in range(1, count):
        shortest, longest = min(shortest, ring[k]), max(longest, ring[k])
    if _NEAR * (longest - shortest) > shortest:
        return 0  # some may be no single periods
    slow, fast = _SECOND / longest, _SECOND / shortest
    rate = int(slow + 0.5)
    return rate if rate == int(fast + 0.5) and _is_near(slow, rate) and _is_near(fast, rate) else 0


@njit(error_model="numpy")
def estimate(ring: Ints, count: int, current: int) -> int:
    """As `StreamPeriodEstimator.rate_after`; 0 for None."""
    if count < MIN_DIFFERENCES:
        return 0
    rate = _obvious(ring, count)
    if rate:
        return rate
    ordered = np.empty(count, np.int64)
    for k in range(count):
        place = k
        while place > 0 and ordered[place - 1] > ring[k]:
            ordered[place] = ordered[place - 1]
            place -= 1
        ordered[place] = ring[k]
    double = ordered[(count - 1) // 2] + ordered[count // 2]
    period, fitting = double / 2, count
    if _NEAR * (double - 2 * ordered[0]) > double or _NEAR * (2 * ordered[count - 1] - double) > double:
        period, fitting = _period(ordered, double)
        if 2 * fitting < count:
            other, other_fitting = _period(ordered, 2 * ordered[count // 4])
            if 4 * other_fitting >= 3 * count:
                period, fitting = other, other_fitting
    raw = _SECOND / period
    if current and 4 * fitting < 3 * count and _is_near(raw, current):
        return current
    rate = int(raw + 0.5)
    return rate if rate >= 1 and _is_near(raw, rate) else 0


@njit(error_model="numpy")
def merge(one: int, other: int, messages: Waiting) -> int:
    """Merge two skew heaps (Sleator and Tarjan 1986) of waiting messages."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    times, left, right = messages.times, messages.left, messages.right
    if times[other] < times[one]:
        one, other = other, one
    root = one
    while True:
        lower = right[one]
        right[one] = left[one]
        if lower == NONE:
            left[one] = other
            return root
        if times[other] < times[lower]:
            lower, other = other, lower
        left[one] = lower
        one = lower


@njit(error_model="numpy", inline="always")  # passing all these arrays on costs thirty times the work
def push_behind(row: int, message: int, tracks: Table, messages: Waiting) -> bool:
    """Push a message behind the newest of its pile, as nearly all are; False where it belongs elsewhere.

    It waits as long as any, so that it may be below the newest, and catching up stays linear.
    """
    event_time = messages.times[message]
    last = tracks[row, PILE_LAST]
    if not tracks[row, PILED] or event_time < tracks[row, PILE_NEWEST] or messages.left[last] != NONE:
        return False
    messages.left[last] = message
    messages.left[message] = messages.right[message] = NONE
    messages.waits_for[message] = row
    tracks[row, PILE_NEWEST] = event_time
    tracks[row, PILE_LAST] = message
    tracks[row, PILED] += 1
    return True


@njit(error_model="numpy")
def push(row: int, message: int, tracks: Table, messages: Waiting) -> None:
    """As `Pile.push`."""
    if push_behind(row, message, tracks, messages):
        return
    track = tracks[row]
    event_time = messages.times[message]
    messages.left[message] = messages.right[message] = NONE
    messages.waits_for[message] = row
    if not track[PILED] or event_time >= track[PILE_NEWEST]:
        track[PILE_NEWEST] = event_time
        track[PILE_LAST] = message
    track[ROOT] = merge(track[ROOT], message, messages)
    track[PILED] += 1


@njit(error_model="numpy")
def take_oldest(track: Ints, messages: Waiting) -> int:
    """Take the oldest message off a pile."""
    message = int(track[ROOT])
    track[ROOT] = merge(int(messages.left[message]), int(messages.right[message]), messages)
    track[PILED] -= 1
    messages.waits_for[message] = NONE
    return message


@njit(error_model="numpy")
def observe(row: int, event_time: int, set_back: int, known: Known) -> None:
    """As `StreamPeriodEstimator.observe`."""
    track = known.tracks[row]
    if track[NEWEST] == NEVER or event_time < track[NEWEST] - set_back:
        track[NEWEST] = event_time
    elif event_time > track[NEWEST]:
        if track[MAY_GATE]:
            known.rings[row, track[NEXT_KEPT]] = event_time - track[NEWEST]
            track[NEXT_KEPT] = (track[NEXT_KEPT] + 1) % KEPT_DIFFERENCES
            track[KEPT] = min(track[KEPT] + 1, KEPT_DIFFERENCES)
        track[NEWEST] = event_time


@njit(error_model="numpy")
def notice(track: Ints, event_time: int) -> None:
    """As `Track.notice`."""
    if not track[PRESENT]:
        track[PRESENT] = 1
        track[FIRST] = event_time
    if event_time >= track[LAST_FROM]:
        track[SATISFIED] = 1
    track[NOTICE_FROM] = NEVER if not track[RATE] or track[SATISFIED] else track[LAST_FROM]


@njit(error_model="numpy")
def place_track(track: Ints, start: int, length: int, steps: int) -> None:
    """As `Track.place`."""
    if steps and track[SETTLED]:
        moved = steps * length
        track[OVER_FROM] += moved
        if track[RATE]:
            track[LAST_FROM] += moved
            track[FAR_FROM] += moved
    elif not track[RATE]:
        track[OVER_FROM] = start + length + 1
        track[LAST_FROM] = track[FAR_FROM] = NEVER
        track[SETTLED] = 1
    else:
        end = start + length
        track[OVER_FROM] = earliest(track[ORIGIN], track[RATE], end, 0)
        track[LAST_FROM] = earliest(track[ORIGIN], track[RATE], end, 1)
        track[FAR_FROM] = earliest(track[ORIGIN], track[RATE], end + HORIZON * length, 0)
        track[SETTLED] = length % _SECOND * track[RATE] % _SECOND == 0
    if track[NEWEST] < start - EPOCH * length:
        track[NEWEST] = NEVER
    track[PRESENT] = track[SATISFIED] = 0
    track[FIRST] = NEVER
    track[NOTICE_FROM] = BEFORE_ALL if track[MAY_GATE] else NEVER


@njit(error_model="numpy")
def regrid(row: int, start: int, known: Known) -> None:
    """As `Track.regrid`."""
    track, length = known.tracks[row], known.facts[LENGTH]
    rate = estimate(known.rings[row], track[KEPT], track[RATE])
    origin = track[ORIGIN]
    if rate and (_SECOND + rate - 1) // rate > length:
        rate = 0
    if rate and (not track[RATE] or abs(origin - start) > EPOCH * length):
        origin = track[FIRST] if track[PRESENT] else track[NEWEST]
        if origin == NEVER or abs(origin - start) > EPOCH * length:
            rate = 0
    if rate != track[RATE] or (rate and origin != track[ORIGIN]):
        track[RATE] = rate
        track[ORIGIN] = origin
        track[SETTLED] = 0


@njit(error_model="numpy")
def windows_to(track: Ints, event_time: int, start: int, length: int) -> int:
    """As `Track.windows_to`."""
    steps = (event_time - start) // length
    if track[RATE] and event_time >= earliest(track[ORIGIN], track[RATE], start + (steps + 1) * length, 0):
        steps += 1
    return steps


@njit(error_model="numpy")
def begin_track(row: int, known: Known) -> None:
    """Make a track anew."""
    track = known.tracks[row]
    track[TRACKED] = 1
    track[NEWEST] = NEVER
    track[KEPT] = track[NEXT_KEPT] = track[RATE] = track[SETTLED] = track[ABSENT_BATCHES] = 0
    track[ROOT] = NONE
    place_track(track, known.facts[WINDOW_START], known.facts[LENGTH], 0)


@njit(error_model="numpy")
def apart(earlier: int, later: int) -> np.uint64:
    """How far apart two times are; unsigned, since the ends of time are further apart than a signed number holds."""
    return np.uint64(later) - np.uint64(earlier)


@njit(error_model="numpy")
def plausible_range(times: Ints, length: int, moving: bool) -> tuple[int, int]:
    """As `rate_rule.plausible_range`."""
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


@njit(error_model="numpy")
def placed(anchor: int, length: int) -> int:
    """As `rate_rule.placed`."""
    margin = 2 * EPOCH * length
    return min(max(anchor, MIN_NS + margin), MAX_NS - margin)
