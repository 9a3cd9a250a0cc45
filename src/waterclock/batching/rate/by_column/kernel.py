"""The rules of batching by rate over arrays, compiled with Numba.

Each function has the name of the function whose rule it follows, in `period`, `pile`, `stream`, `starts`, `stall`,
`window` or `batcher`; the functions here are in that order. Numba caches machine code per file and looks for changes
only in that file. So this file contains all the compiled code of the rules, and imports only constants. After you
change such a constant, save this file, too: otherwise the machine code keeps the old value, and its batches differ from
those of `RateAwareBatcher`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.kernels import numba_for
from waterclock.batching.rate.period import KEPT_DIFFERENCES, LONGEST_DIFFERENCE, MIN_DIFFERENCES, STABLE_DIFFERENCES
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE
from waterclock.batching.rate.rule import (
    ABSENT,
    CUTS,
    ERA,
    FORGETS,
    GATES,
    HORIZON,
    MOST_AWAITED,
    MOST_ERAS,
    MOST_UNMOVED,
    MOVING,
    PACE,
    STALLED,
)
from waterclock.batching.rate.starts import MOST_RUNS
from waterclock.time import MAX_NS, MIN_NS

njit, types = numba_for(__name__)
_internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)  # only compiled code calls it
_inlined = njit(error_model="numpy", inline="always")

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Links = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint32]  # unsigned, because Numba then leaves out the test for negative indices

# The columns of a track.
(
    ROLE,
    TRACKED,
    NEWEST,
    KEPT,
    NEXT_KEPT,
    ORIGIN,
    RATE,  # in Hz; or, of a stream without a whole rate, minus its period in ns; 0 without a grid
    ABSENT_BATCHES,
    FIRST,
    PRESENT,
    SATISFIED,
    OVER_FROM,
    LAST_FROM,
    FAR_FROM,
    NOTICE_FROM,
    STEADY,
    ROOT,
    PILED,
    PILE_NEWEST,
    PILE_LAST,
    TRACK_COLUMNS,
) = range(21)

# The facts of a source, without its tracks.
(
    BEGUN,
    WINDOW_START,
    HIGH_WATER,
    STRAYS,
    FURTHEST,
    SETBACKS,
    UNMOVED,
    ERAS,
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
    DOUBTFUL,  # 1 if it is, else 0
    TRUSTED_FROM,
    OUTNUMBERED,
    AUTO,  # 1 if the timeout follows delays, else 0
    SLOWEST,
    AWAITED,
    DISORDER,
    CUT_AT,  # the boundary that ends the window, ns; NEVER without
    FACTS,
) = range(32)

# Rows of other eras' traffic and of runs follow in the same array, since each further array costs time at every call.
ELSEWHERE_FROM = FACTS
ELSEWHERE_COLUMNS = 5
RUNS_FROM = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * MOST_ERAS
RUN_COLUMNS = 3
ALL_FACTS = RUNS_FROM + RUN_COLUMNS * (MOST_RUNS + 1)

# The columns of the links of messages, whose last is NONE for messages that do not wait, and those of batches.
LEFT, RIGHT, WAITS_FOR, LINK_COLUMNS = range(4)
BATCH_START, BATCH_END, CLOSED_AT, REASON, UNTIL, BATCH_COLUMNS = range(6)

# Numba compiles a function once for each Python constant passed to it, but only once for all numbers of NumPy.
NONE, NEVER, BEFORE_ALL, ZERO, ONE = np.array([-1, MAX_NS, MIN_NS, 0, 1], np.int64)
FALSE, TRUE = np.array([False, True])

_SECOND = 1_000_000_000
_NEAR = 8


class Known(NamedTuple):
    """The state except messages; ``tracks`` and ``rings`` have a row per gating stream, and one for all others."""

    facts: Ints
    tracks: Table
    rings: Table


class WaitingMessages(NamedTuple):
    """By message: its track, its event time, and in ``links`` its children in a pile and the track it waits for."""

    rows: Codes
    times: Ints
    links: Links


@_internal
def _earliest(origin: int, rate: int, start: int, back: int) -> int:
    """`PulseGrid.earliest` of the pulse ``back`` before the first of the window at ``start``, without overflow."""
    if rate < 0:
        period = -rate
        number = (start - origin) // period
        if start - origin - number * period > min(DRIFT_TOLERANCE, period // 2):
            number += 1
        return origin - (1 - 2 * (number - back)) * period // 2
    second = (start - origin) // _SECOND
    product = (start - origin - second * _SECOND) * rate
    number = product // _SECOND
    if product - number * _SECOND > min(DRIFT_TOLERANCE * rate, _SECOND // 2):
        number += 1
    return origin + second * _SECOND - (1 - 2 * (number - back)) * _SECOND // (2 * rate)


@_internal
def _is_near(raw: float, rate: int) -> bool:
    return abs(raw - rate) <= max(0.1 * rate, 0.1)


@_internal
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


@_internal
def _period(ordered: Ints, double: int) -> tuple[float, int]:
    per_pulse = np.empty(ordered.size, np.float64)
    count = ZERO
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


@_internal
def _obvious(ring: Ints, count: int) -> int:
    """Return the rate if it does not depend on which difference is the median; 0 if it does."""
    shortest = longest = ring[0]
    for k in range(1, count):
        shortest, longest = min(shortest, ring[k]), max(longest, ring[k])
    if _NEAR * (longest - shortest) > shortest:
        return 0  # some differences may span several periods
    slow, fast = _SECOND / longest, _SECOND / shortest
    rate = int(slow + 0.5)
    return rate if rate == int(fast + 0.5) and _is_near(slow, rate) and _is_near(fast, rate) else 0


@_internal
def _estimate(ring: Ints, count: int, current: int) -> int:
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
    raw = _SECOND / period
    if current and 4 * fitting < 3 * count and _is_near(raw, current):
        return current
    rate = int(raw + 0.5)
    return rate if rate >= 1 and _is_near(raw, rate) else 0


@_internal
def _own_period(ring: Ints, count: int) -> int:
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
    return period if 0 < period <= _SECOND and 8 * fitting >= 7 * count else 0


@_internal
def _merge(one: int, other: int, messages: WaitingMessages) -> int:
    """Merge two skew heaps (Sleator and Tarjan 1986) of waiting messages."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    times, links = messages.times, messages.links
    if times[other] < times[one]:
        one, other = other, one
    root = one
    while True:
        lower = links[one, RIGHT]
        links[one, RIGHT] = links[one, LEFT]
        if lower == NONE:
            links[one, LEFT] = other
            return root
        if times[other] < times[lower]:
            lower, other = other, lower
        links[one, LEFT] = lower
        one = lower


@_inlined  # passing all these arrays to a function costs thirty times the work
def _push_behind(row: int, message: int, tracks: Table, messages: WaitingMessages) -> bool:
    """Push a message behind the newest of its pile, as for nearly all; False if it belongs elsewhere.

    It is taken last, so it may be the newest one's child, and catching up stays linear.
    """
    event_time = messages.times[message]
    last = tracks[row, PILE_LAST]
    if not tracks[row, PILED] or event_time < tracks[row, PILE_NEWEST] or messages.links[last, LEFT] != NONE:
        return False
    messages.links[last, LEFT] = message
    messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
    messages.links[message, WAITS_FOR] = row
    tracks[row, PILE_NEWEST] = event_time
    tracks[row, PILE_LAST] = message
    tracks[row, PILED] += 1
    return True


@_internal
def _push(row: int, message: int, tracks: Table, messages: WaitingMessages) -> None:
    """As `Pile.push`."""
    if _push_behind(row, message, tracks, messages):
        return
    track = tracks[row]
    event_time = messages.times[message]
    messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
    messages.links[message, WAITS_FOR] = row
    if not track[PILED] or event_time >= track[PILE_NEWEST]:
        track[PILE_NEWEST] = event_time
        track[PILE_LAST] = message
    track[ROOT] = _merge(track[ROOT], message, messages)
    track[PILED] += 1


@_internal
def _take_oldest(track: Ints, messages: WaitingMessages) -> int:
    """Take the oldest message off a pile."""
    message = int(track[ROOT])
    track[ROOT] = _merge(np.int64(messages.links[message, LEFT]), np.int64(messages.links[message, RIGHT]), messages)
    track[PILED] -= 1
    messages.links[message, WAITS_FOR] = NONE
    return message


@_internal
def _by_time(some: Ints, messages: WaitingMessages) -> Ints:
    """Order messages that do not wait by event time, in a heap: to compile a sort by key takes seconds."""
    root = NONE
    for message in some:
        messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
        root = _merge(root, message, messages)
    ordered = np.empty_like(some)
    for k in range(len(some)):
        ordered[k] = root
        root = _merge(np.int64(messages.links[root, LEFT]), np.int64(messages.links[root, RIGHT]), messages)
    return ordered


@_internal
def _observe(row: int, event_time: int, set_back: int, known: Known) -> None:
    """As `StreamPeriodEstimator.observe`."""
    track = known.tracks[row]
    if track[NEWEST] == NEVER or event_time < track[NEWEST] - set_back:
        track[NEWEST] = event_time
    elif event_time > track[NEWEST]:
        if track[ROLE] == GATES:
            known.rings[row, track[NEXT_KEPT]] = event_time - track[NEWEST]
            track[NEXT_KEPT] = (track[NEXT_KEPT] + 1) % KEPT_DIFFERENCES
            track[KEPT] = min(track[KEPT] + 1, KEPT_DIFFERENCES)
        track[NEWEST] = event_time


@_internal
def _notice(track: Ints, event_time: int) -> None:
    """As `Track.notice`."""
    if not track[PRESENT]:
        track[PRESENT] = 1
        track[FIRST] = event_time
    if event_time >= track[LAST_FROM]:
        track[SATISFIED] = 1
    track[NOTICE_FROM] = NEVER if not track[RATE] or track[SATISFIED] else track[LAST_FROM]


@_internal
def _place_track(track: Ints, facts: Ints, steps: int) -> None:
    """As `Track.place`."""
    start, length, disorder = facts[WINDOW_START], facts[LENGTH], facts[DISORDER]
    is_cut = facts[CUT_AT] != NEVER
    if steps and track[STEADY] and not is_cut:
        moved = steps * length
        track[OVER_FROM] += moved
        if track[RATE]:
            track[LAST_FROM] += moved
            track[FAR_FROM] += moved
    elif not track[RATE]:
        last = start if track[ROLE] == CUTS else facts[CUT_AT] - 1 if is_cut else start + length
        track[OVER_FROM] = last + 1
        track[LAST_FROM] = track[FAR_FROM] = NEVER
        track[STEADY] = not is_cut
    else:
        end = facts[CUT_AT] if is_cut else start + length
        track[OVER_FROM] = end if is_cut else _earliest(track[ORIGIN], track[RATE], end, ZERO)
        if disorder:
            track[LAST_FROM] = track[OVER_FROM] + disorder
        else:
            track[LAST_FROM] = _earliest(track[ORIGIN], track[RATE], end + DRIFT_TOLERANCE * is_cut, ONE)
        track[FAR_FROM] = _earliest(track[ORIGIN], track[RATE], end + HORIZON * length + disorder, ZERO)
        rate = track[RATE]
        track[STEADY] = not is_cut and (length % -rate if rate < 0 else length % _SECOND * rate % _SECOND) == 0
    if track[NEWEST] < start - ERA * length:
        track[NEWEST] = NEVER
    track[PRESENT] = track[SATISFIED] = 0
    track[FIRST] = NEVER
    track[NOTICE_FROM] = BEFORE_ALL if track[ROLE] == GATES else NEVER


@_internal
def _regrid(row: int, start: int, known: Known) -> None:
    """As `Track.regrid`."""
    track, length = known.tracks[row], known.facts[LENGTH]
    for k in range(track[KEPT]):
        known.rings[row, k] = min(known.rings[row, k], LONGEST_DIFFERENCE)
    rate = _estimate(known.rings[row], track[KEPT], max(track[RATE], 0))
    origin = track[ORIGIN]
    if not rate:
        period = _own_period(known.rings[row], track[KEPT])
        if period and period <= length and track[NEWEST] != NEVER and abs(track[NEWEST] - start) <= ERA * length:
            rate, origin = -period, track[NEWEST]
    elif (_SECOND + rate - 1) // rate > length:
        rate = 0
    if rate > 0 and (not track[RATE] or abs(origin - start) > ERA * length):
        origin = track[FIRST] if track[PRESENT] else track[NEWEST]
        if origin == NEVER or abs(origin - start) > ERA * length:
            rate = 0
    if rate != track[RATE] or (rate and origin != track[ORIGIN]):
        track[RATE] = rate
        track[ORIGIN] = origin
        track[STEADY] = 0


@_internal
def _windows_to(track: Ints, event_time: int, facts: Ints) -> int:
    """As `Track.windows_to`."""
    start, length = facts[WINDOW_START], facts[LENGTH]
    if facts[CUT_AT] != NEVER:
        return int(event_time >= facts[CUT_AT])
    steps = (event_time - start) // length
    if track[RATE] and event_time >= _earliest(track[ORIGIN], track[RATE], start + (steps + 1) * length, ZERO):
        steps += 1
    return steps


@_internal
def _begin_track(row: int, known: Known) -> None:
    track = known.tracks[row]
    track[TRACKED] = 1
    track[NEWEST] = NEVER
    track[KEPT] = track[NEXT_KEPT] = track[RATE] = track[STEADY] = track[ABSENT_BATCHES] = 0
    track[ROOT] = NONE
    _place_track(track, known.facts, ZERO)


@_internal
def _apart(earlier: int, later: int) -> np.uint64:
    """Return the distance of two times; unsigned, since it may exceed the largest signed number."""
    # From int64 first: NumPy refuses to convert Python's negative integers, which the interpreted form passes.
    return np.uint64(np.int64(later)) - np.uint64(np.int64(earlier))


@_internal
def _plausible_range(times: Ints, length: int, moving: bool) -> tuple[int, int]:
    """As `rule.plausible_range`."""
    ordered = np.sort(times)
    oldest = newest = ordered[0]
    most = first = 0
    moves = False
    for k in range(1, ordered.size + 1):
        if k == ordered.size or _apart(ordered[k - 1], ordered[k]) > np.uint64(HORIZON * length):
            also = moving and _apart(ordered[first], ordered[k - 1]) >= np.uint64(MOVING * length)
            if (also and not moves) or (also == moves and k - first >= most):
                most, moves = k - first, also
                oldest, newest = ordered[first], ordered[k - 1]
            first = k
    return oldest, newest


@_internal
def _placed(anchor: int, length: int) -> int:
    """As `rule.placed`."""
    margin = 2 * ERA * length
    return min(max(anchor, MIN_NS + margin), MAX_NS - margin)


@_internal
def _era_until(start: int, length: int) -> int:
    """As `RateWindow.era_until`."""
    return min(start, MAX_NS - 2 * ERA * length) + length + ERA * length


# Places of the last start and of the step of a run of starts, after its first.
_LAST, _STEP = 1, 2


@_internal
def _taken(start: int, facts: Ints) -> int:
    for k in range(facts[RUNS]):
        run = RUNS_FROM + RUN_COLUMNS * k
        first = facts[run]
        if first <= start <= facts[run + _LAST] and _apart(first, start) % np.uint64(facts[run + _STEP]) == np.uint64(
            0
        ):
            return int(run)
    return NONE


@_internal
def _free_start(start: int, facts: Ints) -> int:
    """As `Starts.free`."""
    furthest = int(facts[FURTHEST])
    if start > furthest:
        return start
    for _ in range(2 * MOST_RUNS):
        run = _taken(start, facts)
        if run == NONE:
            return start
        start = int(facts[run + _LAST]) + 1 if facts[run + _STEP] == 1 else start + 1
    return furthest + 1


@_internal
def _remove_earliest_run(facts: Ints) -> int:
    count = int(facts[RUNS])
    earliest = RUNS_FROM
    for k in range(1, count):
        run = RUNS_FROM + RUN_COLUMNS * k
        if facts[run + _LAST] < facts[earliest + _LAST]:
            earliest = run
    last = int(facts[earliest + _LAST])
    for place in range(earliest, RUNS_FROM + RUN_COLUMNS * (count - 1)):
        facts[place] = facts[place + RUN_COLUMNS]
    facts[RUNS] -= 1
    return last


@_internal
def _remember_run(first: int, last: int, step: int, facts: Ints) -> None:
    """Record a run that began before all others."""
    for place in range(RUNS_FROM + RUN_COLUMNS * facts[RUNS] - 1, RUNS_FROM - 1, -1):
        facts[place + RUN_COLUMNS] = facts[place]
    facts[RUNS_FROM], facts[RUNS_FROM + _LAST], facts[RUNS_FROM + _STEP] = first, last, step
    facts[RUNS] += 1


@_internal
def _begin_start(start: int, step: int, facts: Ints) -> None:
    """As `Starts.begin`."""
    facts[FURTHEST] = max(facts[FURTHEST], start)
    run = RUNS_FROM + RUN_COLUMNS * facts[RUNS]
    if facts[RUNS]:
        before = run - RUN_COLUMNS
        last = int(facts[before + _LAST])
        if facts[before + _STEP] == step and start > last and _apart(last, start) % np.uint64(step) == np.uint64(0):
            facts[before + _LAST] = start
            return
    facts[run], facts[run + _LAST], facts[run + _STEP] = start, start, step
    facts[RUNS] += 1
    if facts[RUNS] > MOST_RUNS:
        _remove_earliest_run(facts)
        _remember_run(BEFORE_ALL, _remove_earliest_run(facts), ONE, facts)


# Places of the other facts of a piece of traffic elsewhere, after its oldest event time.
_UNTIL, _COVERED, _CALLS, _MARK = 1, 2, 3, 4


@_internal
def _within(low: int, high: int, most: int) -> int:
    """Return the distance of two times, but at most this much."""
    between = _apart(low, high)
    return most if between > np.uint64(most) else int(np.int64(between))  # signed, or Numba makes it a float


@_internal
def _move_elsewhere(from_: int, to: int, facts: Ints) -> None:
    for column in range(ELSEWHERE_COLUMNS):
        facts[to + column] = facts[from_ + column]


@_internal
def _add_elsewhere(oldest: int, newest: int, covered: int, mark: int, length: int, facts: Ints) -> None:
    era, enough = np.uint64(ERA * length), STALLED * length
    calls = 1
    place = ELSEWHERE_FROM  # the row to which the next kept era moves
    for k in range(facts[ERAS]):
        known = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k
        from_, until = int(facts[known]), int(facts[known + _UNTIL])
        if (oldest > until and _apart(until, oldest) > era) or (from_ > newest and _apart(newest, from_) > era):
            _move_elsewhere(known, place, facts)
            place += ELSEWHERE_COLUMNS
            continue
        before = int(facts[known + _COVERED])
        joined = max(covered, before)
        if newest > until:
            gap = _within(until, oldest, HORIZON * length) if oldest > until else 0
            joined = max(joined, min(before + _within(until, newest, covered + gap), enough))
        oldest, newest, covered, calls = min(oldest, from_), max(newest, until), joined, 2
        mark = int(facts[known + _MARK])
    if place == ELSEWHERE_FROM + ELSEWHERE_COLUMNS * MOST_ERAS:
        place = ELSEWHERE_FROM
        for _ in range(1, MOST_ERAS):
            _move_elsewhere(place + ELSEWHERE_COLUMNS, place, facts)
            place += ELSEWHERE_COLUMNS
    facts[place], facts[place + _UNTIL], facts[place + _COVERED] = oldest, newest, covered
    facts[place + _CALLS], facts[place + _MARK] = calls, mark
    facts[ERAS] = (place - ELSEWHERE_FROM) // ELSEWHERE_COLUMNS + 1


@_internal
def _add_pieces_elsewhere(ordered: Ints, mark: int, length: int, facts: Ints) -> None:
    oldest = newest = ordered[0]
    covered = ZERO
    for k in range(len(ordered)):
        time = ordered[k]
        if _apart(newest, time) > np.uint64(ERA * length):
            _add_elsewhere(oldest, newest, covered, mark, length, facts)
            oldest, covered = time, ZERO
        else:
            covered = min(covered + _within(newest, time, HORIZON * length), STALLED * length)
        newest = time
    _add_elsewhere(oldest, newest, covered, mark, length, facts)


@_internal
def _has_moved_on(known: int, length: int, facts: Ints) -> bool:
    """As `Elsewhere.has_moved_on`."""
    return bool(facts[known + _CALLS] > 1 and facts[known + _COVERED] >= STALLED * length)


@_internal
def _keeps_pace(known: int, facts: Ints) -> bool:
    """As `Elsewhere.keeps_pace`, of the high-water mark."""
    span, mark = _apart(int(facts[known]), int(facts[known + _UNTIL])), int(facts[known + _MARK])
    pace = np.uint64(PACE)
    whole = span // pace + np.uint64(span % pace > np.uint64(0))  # times the pace, the other side may overflow
    return bool(facts[HIGH_WATER] >= mark and whole <= _apart(mark, int(facts[HIGH_WATER])))


@_internal
def _moved(rivalled: bool, facts: Ints) -> None:
    """As `StallWatch.moved`."""
    facts[UNMOVED] = 0
    count = facts[ERAS] if rivalled else 0
    facts[ERAS] = 0
    for k in range(count):
        known = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k
        if _keeps_pace(known, facts):
            _move_elsewhere(known, ELSEWHERE_FROM + ELSEWHERE_COLUMNS * facts[ERAS], facts)
            facts[ERAS] += 1


@_internal
def _is_contested(length: int, facts: Ints) -> bool:
    """As `StallWatch.is_contested`."""
    for k in range(facts[ERAS]):
        known = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k
        if _has_moved_on(known, length, facts) and _keeps_pace(known, facts):
            return True
    return False


@_internal
def _is_stuck(times: Ints, first: int, stop: int, mark: int, start: int, length: int, facts: Ints) -> bool:
    """As `StallWatch.is_stuck`, for the event times of a call and the window at ``start``.

    The messages that joined are already counted.
    """
    near_from, era_until = start - HORIZON * length, _era_until(start, length)
    count = 0
    for message in range(first, stop):
        count += times[message] < near_from or times[message] > era_until
    if count:
        implausible = np.empty(count, np.int64)
        count = 0
        for message in range(first, stop):
            if times[message] < near_from or times[message] > era_until:
                implausible[count] = times[message]
                count += 1
        _add_pieces_elsewhere(np.sort(implausible), mark, length, facts)
        for k in range(facts[ERAS]):
            if _has_moved_on(ELSEWHERE_FROM + ELSEWHERE_COLUMNS * k, length, facts):
                return True
    return bool(facts[UNMOVED] >= MOST_UNMOVED)


class KernelOutput(NamedTuple):
    """Messages in the order in which they joined a window, and a row for each batch."""

    joined: Ints
    batches: Table


@_internal
def _join(message: int, facts: Ints, out: KernelOutput) -> None:
    out.joined[facts[JOINED]] = message
    facts[JOINED] += 1


@_internal
def _notice_and_count(track: Ints, event_time: int, facts: Ints) -> None:
    """As `Assembly.notice`."""
    present, satisfied = track[PRESENT], track[SATISFIED]
    _notice(track, event_time)
    if track[RATE]:
        facts[CONTRIBUTING] += track[PRESENT] - present
        facts[WAITING] -= track[SATISFIED] - satisfied


@_internal
def _windows_to_first(gating_only: bool, known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.windows_to_first`."""
    nearest = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[PILED] and (track[RATE] or track[ROLE] == CUTS or not gating_only):
            oldest = int(messages.times[int(track[ROOT])])
            nearest = min(nearest, _windows_to(track, oldest, known.facts))
    return 0 if nearest == NEVER else nearest


@_internal
def _complete_windows(known: Known) -> int:
    """Return for how many windows no message can still come, if each gating stream has a message that waits."""
    facts, complete = known.facts, NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[RATE]:
            newest = track[PILE_NEWEST] - facts[DISORDER]
            complete = min(complete, _windows_to(track, newest, facts))
    return max(complete, 0)


@_internal
def _gap(known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.gap`."""
    facts = known.facts
    if not facts[ALL_PILED]:
        return 0
    if not facts[GATING]:
        if facts[JOINED] - facts[ACTIVE_FROM] > facts[STRAYS]:
            return 0
        complete = _windows_to(known.tracks[-1], facts[HIGH_WATER] - facts[DISORDER], facts)
        steps = _windows_to_first(FALSE, known, messages)
        return max(min(steps, complete), 0) if facts[DISORDER] else steps
    if facts[CONTRIBUTING]:
        return 0
    for row in range(len(known.tracks)):
        if known.tracks[row, RATE] and not known.tracks[row, PILED]:
            return 0
    steps = _windows_to_first(TRUE, known, messages)
    return min(steps, _complete_windows(known)) if facts[DISORDER] else steps


@_internal
def _has_between(track: Ints, messages: WaitingMessages) -> bool:
    """As `Pile.has_between` for the times that satisfy the gate; visits few messages before them."""
    times, links = messages.times, messages.links
    first, stop = track[LAST_FROM], track[FAR_FROM]
    if times[int(track[ROOT])] >= first:
        return bool(times[int(track[ROOT])] < stop)
    heap = np.empty(track[PILED] + 1, np.int64)
    heap[0] = track[ROOT]
    open_ = 1
    while open_:
        open_ -= 1
        message = heap[open_]
        for child in (links[message, LEFT], links[message, RIGHT]):
            if child == NONE or times[child] >= stop:
                continue
            if times[child] >= first:
                return True
            heap[open_] = child
            open_ += 1
    return False


@_internal
def _let_in(track: Ints, facts: Ints, messages: WaitingMessages, out: KernelOutput) -> None:
    # A field lookup in the loop would cost more than everything else in it.
    times, links = messages.times, messages.links
    joined = out.joined
    root, piled, over_from = track[ROOT], track[PILED], track[OVER_FROM]
    first = last = facts[JOINED]
    while piled and times[root] < over_from:
        joined[last] = root
        last += 1
        piled -= 1
        links[root, WAITS_FOR] = NONE
        lower = np.int64(links[root, LEFT])
        root = lower if links[root, RIGHT] == NONE else _merge(lower, np.int64(links[root, RIGHT]), messages)
    if last > first:
        track[ROOT], track[PILED], facts[JOINED] = root, piled, last
        oldest, newest = int(times[joined[first]]), int(times[joined[last - 1]])
        facts[HIGH_WATER] = max(facts[HIGH_WATER], newest)
        _notice(track, oldest)
        _notice(track, newest)
    if piled and track[RATE] and _has_between(track, messages):
        track[SATISFIED] = 1


@_inlined
def _change_length(start: int, known: Known) -> None:
    facts = known.facts
    facts[LENGTH], facts[TIMEOUT_NS] = facts[NEXT_LENGTH], facts[NEXT_TIMEOUT]
    facts[NEXT_LENGTH] = 0
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            _regrid(row, start, known)


@_internal
def _ahead(facts: Ints) -> int:
    """Return how far (ns) the mark may be ahead of the window's start, and a held message of its end."""
    return HORIZON * facts[LENGTH] + facts[DISORDER]


@_internal
def _set_timeout(facts: Ints) -> None:
    """As `RateRule.awaiting`."""
    if facts[AUTO]:
        facts[TIMEOUT_NS] = min(facts[LENGTH] * 6 // 5 + facts[AWAITED], HORIZON * facts[LENGTH])


@_internal
def _open_window(start: int, steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.open`."""
    facts = known.facts
    free = _free_start(start, facts)
    steps *= free == start  # after a jump, such as a change of length, no steps are counted
    start = free
    if facts[NEXT_LENGTH]:
        _change_length(start, known)
        steps = 0
    length = facts[LENGTH]
    _set_timeout(facts)
    _begin_start(start, length, facts)
    facts[WINDOW_START], facts[CUT_AT] = start, NEVER
    boundary = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[TRACKED] and track[ROLE] == CUTS:
            _place_track(track, facts, steps)
            _let_in(track, facts, messages, out)
            if track[PILED]:
                boundary = min(boundary, messages.times[int(track[ROOT])])
    if boundary <= start + length:
        facts[CUT_AT] = boundary
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[TRACKED] and track[ROLE] != CUTS:
            _place_track(track, facts, steps)
    _admit_waiting(known, messages, out)


@_inlined
def _skip(steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.skip`."""
    facts = known.facts
    is_cut = facts[CUT_AT] != NEVER
    start = facts[CUT_AT] if is_cut else facts[WINDOW_START] + steps * facts[LENGTH]
    _open_window(start, ZERO if is_cut else steps, known, messages, out)


@_internal
def _cut(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._cut`, when `_place_ahead` has found the boundary."""
    facts = known.facts
    for row in range(len(known.tracks)):
        if known.tracks[row, TRACKED]:
            _place_track(known.tracks[row], facts, ZERO)
    stop, facts[JOINED] = facts[JOINED], facts[ACTIVE_FROM]
    for place in range(facts[JOINED], stop):
        message = out.joined[place]
        row, event_time = messages.rows[message], messages.times[message]
        track = known.tracks[row]
        if not _in_era(event_time, facts[WINDOW_START], facts[LENGTH]):
            _join(message, facts, out)
        elif event_time < track[OVER_FROM] or (not track[RATE] and event_time > facts[HELD_UNTIL]):
            _join(message, facts, out)
            _notice(track, event_time)
        else:
            _push(row, message, known.tracks, messages)
    facts[UNMOVED] = 0
    _admit_waiting(known, messages, out)


@_internal
def _admit_waiting(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._admit_waiting`."""
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    facts[GATING] = facts[CONTRIBUTING] = facts[WAITING] = facts[ALL_PILED] = 0
    newest_waiting = BEFORE_ALL
    newest_gating = start + length
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PILED]:
            _let_in(track, facts, messages, out)
        if track[PILED]:
            facts[ALL_PILED] += track[PILED]
            newest_waiting = max(newest_waiting, track[PILE_NEWEST])
            if track[RATE]:
                newest_gating = max(newest_gating, track[PILE_NEWEST])
        if track[RATE]:
            facts[GATING] += 1
            facts[CONTRIBUTING] += track[PRESENT]
            facts[WAITING] += 1 - track[SATISFIED]
    facts[HELD_UNTIL] = newest_gating + _ahead(facts)
    if not facts[GATING]:
        facts[WAITING] = NONE
        if facts[ALL_PILED]:
            facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest_waiting, start + _ahead(facts)))


@_inlined
def _review(known: Known) -> None:
    for row in range(len(known.tracks) - 1):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PRESENT]:
            track[ABSENT_BATCHES] = 0
            _regrid(row, known.facts[WINDOW_START], known)
            continue
        track[ABSENT_BATCHES] += 1
        if track[ABSENT_BATCHES] >= ABSENT:
            track[NEWEST] = NEVER
            track[KEPT] = track[NEXT_KEPT] = 0
            track[RATE] = track[STEADY] = 0
            if not track[PILED]:
                track[TRACKED] = track[ABSENT_BATCHES] = 0


@_internal
def _in_era(time: int, start: int, length: int) -> bool:
    return start - ERA * length <= time <= _era_until(start, length)


@_internal
def _is_rivalled(facts: Ints) -> bool:
    """As `Assembly.is_rivalled`."""
    more = 2 * facts[STRAYS] > facts[JOINED] - facts[ACTIVE_FROM] + facts[ALL_PILED]
    return bool(facts[DOUBTFUL] == 1 and (facts[OUTNUMBERED] or more))


@_internal
def _is_agreed(known: Known) -> bool:
    """As `Assembly._is_agreed`."""
    facts, riding = known.facts, len(known.tracks) - 1
    start, length = facts[WINDOW_START], facts[LENGTH]
    newest = known.tracks[riding, NEWEST]
    streams = int(start - HORIZON * length <= newest <= _era_until(start, length))
    for row in range(riding):
        streams += known.tracks[row, TRACKED] and known.tracks[row, PRESENT]
    return bool(streams > 1 and not _is_rivalled(facts))


@_internal
def _write_batch(start: int, end: int, reason: int, facts: Ints, out: KernelOutput) -> None:
    """Close a batch of all that has joined."""
    batch = out.batches[facts[BATCHES]]
    batch[BATCH_START], batch[BATCH_END], batch[CLOSED_AT] = start, end, facts[HIGH_WATER]
    batch[REASON], batch[UNTIL] = reason, facts[JOINED]
    facts[BATCHES] += 1
    facts[ACTIVE_FROM] = facts[JOINED]
    facts[STRAYS] = 0


@_inlined
def _observe_in_order(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """Observe the messages of the window, whose order of arrival does not show the rates."""
    facts = known.facts
    for message in _by_time(out.joined[facts[ACTIVE_FROM] : facts[JOINED]], messages):
        row, event_time = messages.rows[message], messages.times[message]
        if known.tracks[row, TRACKED] and _in_era(event_time, facts[WINDOW_START], facts[LENGTH]):
            _observe(row, event_time, HORIZON * facts[LENGTH], known)


@_internal
def _give_out(reason: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.close`, up to the opening of the next window."""
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    if facts[DISORDER]:
        _observe_in_order(known, messages, out)
    if facts[DOUBTFUL] == 1 and start >= facts[TRUSTED_FROM] and _is_agreed(known):
        facts[DOUBTFUL] = 0
    facts[OUTNUMBERED] = 2 * facts[STRAYS] > facts[JOINED] - facts[ACTIVE_FROM]
    if facts[CUT_AT] == NEVER:
        _write_batch(start, start + length, reason, facts, out)
    else:
        _write_batch(start, facts[CUT_AT], STALL if reason == STALL else BOUNDARY, facts, out)
    facts[AWAITED] = max(facts[SLOWEST], facts[AWAITED] - facts[AWAITED] // FORGETS)
    facts[SLOWEST] = 0
    _review(known)


SLOTS, GAP, TIMEOUT, STALL, FLUSH, START, BOUNDARY = np.arange(7, dtype=np.int64)
"""Why a batch closed, as the kernel writes it."""

REASONS = ("slots", "gap", "timeout", "stall", "flush", "start", "boundary")


@_internal
def _has_timed_out(start: int, facts: Ints) -> bool:
    return bool(facts[TIMEOUT_NS] != NEVER and facts[HIGH_WATER] >= start + facts[TIMEOUT_NS] + facts[DISORDER])


@_internal
def _close_complete(known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    before = facts[BATCHES]
    while True:
        steps = _gap(known, messages)
        if steps:
            reason = GAP
        elif not facts[WAITING]:
            reason = SLOTS
        elif _has_timed_out(facts[WINDOW_START], facts):
            reason = TIMEOUT
        else:
            return facts[BATCHES] > before
        if facts[JOINED] > facts[ACTIVE_FROM]:
            _give_out(reason, known, messages, out)
        _skip(max(steps, 1), known, messages, out)


@_internal
def _place_ahead(row: int, message: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts, track = known.facts, known.tracks[row]
    event_time = messages.times[message]
    if not track[RATE] and track[ROLE] != CUTS and facts[GATING] and event_time > facts[HELD_UNTIL]:
        _join(message, facts, out)
        if event_time >= track[NOTICE_FROM]:
            _notice_and_count(track, event_time, facts)
        return
    _push(row, message, known.tracks, messages)
    facts[ALL_PILED] += 1
    if track[ROLE] == CUTS and event_time <= facts[WINDOW_START] + facts[LENGTH]:
        facts[CUT_AT] = min(facts[CUT_AT], event_time)
    if not track[RATE]:
        return
    facts[HELD_UNTIL] = max(facts[HELD_UNTIL], event_time + _ahead(facts))
    if not track[SATISFIED] and track[LAST_FROM] <= event_time < track[FAR_FROM]:
        track[SATISFIED] = 1
        facts[WAITING] -= 1


@_internal
def _note_delays(first: int, stop: int, known: Known, messages: WaitingMessages) -> None:
    facts = known.facts
    mark = facts[HIGH_WATER] - facts[DISORDER]
    most = mark - MOST_AWAITED * facts[LENGTH]
    for message in range(first, stop):
        event_time = messages.times[message]
        if most <= event_time < mark - facts[SLOWEST]:
            track = known.tracks[messages.rows[message]]
            if track[TRACKED] and track[RATE]:
                facts[SLOWEST] = mark - event_time


@_internal
def _place(row: int, message: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    event_time = messages.times[message]
    start, length = facts[WINDOW_START], facts[LENGTH]
    if event_time < start - ERA * length or event_time > _era_until(start, length):
        _join(message, facts, out)
        facts[STRAYS] += 1
        return False
    track = known.tracks[row]
    if not track[TRACKED]:
        _begin_track(row, known)
    if not facts[DISORDER]:
        _observe(row, event_time, HORIZON * length, known)
    if event_time >= track[OVER_FROM]:
        _place_ahead(row, message, known, messages, out)
        return True
    _join(message, facts, out)
    if event_time >= track[NOTICE_FROM]:
        _notice_and_count(track, event_time, facts)
    return True


@_inlined  # and no views: both cost more than everything else for a single message
def _take(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts, tracks, rings, rows = known.facts, known.tracks, known.rings, messages.rows
    newest = BEFORE_ALL
    length = facts[LENGTH]
    # With a disorder, every message goes through `_place`.
    era_until = BEFORE_ALL if facts[DISORDER] else _era_until(facts[WINDOW_START], length)
    for message in range(first, stop):
        row = rows[message]
        event_time = messages.times[message]
        if tracks[row, TRACKED] and tracks[row, NEWEST] < event_time <= era_until:
            if tracks[row, ROLE] == GATES:
                rings[row, tracks[row, NEXT_KEPT]] = event_time - tracks[row, NEWEST]
                tracks[row, NEXT_KEPT] = (tracks[row, NEXT_KEPT] + 1) % KEPT_DIFFERENCES
                tracks[row, KEPT] = min(tracks[row, KEPT] + 1, KEPT_DIFFERENCES)
            tracks[row, NEWEST] = event_time
            if event_time >= tracks[row, OVER_FROM]:
                held = tracks[row, RATE] or not facts[GATING] or event_time <= facts[HELD_UNTIL]
                if held and _push_behind(row, message, tracks, messages):
                    # The stream's gate stays as the message before left it.
                    facts[ALL_PILED] += 1
                    if tracks[row, RATE]:
                        facts[HELD_UNTIL] = max(facts[HELD_UNTIL], event_time + HORIZON * length)
                else:
                    _place_ahead(row, message, known, messages, out)
            else:
                out.joined[facts[JOINED]] = message
                facts[JOINED] += 1
                if event_time >= tracks[row, NOTICE_FROM]:
                    _notice_and_count(tracks[row], event_time, facts)
        elif not _place(row, message, known, messages, out):
            continue
        newest = max(newest, event_time)
    if facts[AUTO]:
        _note_delays(first, stop, known, messages)
    facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest, facts[WINDOW_START] + _ahead(facts)))


@_internal
def _begin(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    length = facts[LENGTH]
    oldest, newest = _plausible_range(messages.times[first:stop].copy(), length, FALSE)
    start = _placed(newest, length)
    facts[BEGUN] = 1
    facts[WINDOW_START] = facts[HIGH_WATER] = start
    facts[DOUBTFUL], facts[TRUSTED_FROM] = 1, start + STALLED * length
    _begin_track(np.uint32(len(known.tracks) - 1), known)
    for message in range(first, stop):
        _join(message, facts, out)
    joined = out.joined[: facts[JOINED]]
    for message in _by_time(joined, messages) if facts[DISORDER] else joined:
        row, event_time = messages.rows[message], messages.times[message]
        if start - ERA * length <= event_time <= start:
            if not known.tracks[row, TRACKED]:
                _begin_track(row, known)
            _observe(row, event_time, 2 * ERA * length, known)  # more than possible
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            _regrid(row, start, known)
    begin = min(oldest, start - 1)
    _write_batch(begin, start, START, facts, out)
    facts[FURTHEST] = begin
    _open_window(start, ZERO, known, messages, out)
    _remember_run(begin, begin, ONE, facts)


@_internal
def _place_anew(anchor: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    start = _placed(anchor, facts[LENGTH])
    facts[DOUBTFUL] = not _in_era(start, facts[WINDOW_START], facts[LENGTH])
    facts[TRUSTED_FROM] = NEVER
    if start <= facts[FURTHEST]:
        facts[SETBACKS] += 1
        start = _free_start(start + facts[SETBACKS], facts)
    last_plausible = start + facts[LENGTH] + _ahead(facts)
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[PILED] or track[PILE_NEWEST] <= last_plausible:
            continue
        plausible = np.empty(track[PILED], np.int64)
        count = 0
        while track[PILED]:
            message = _take_oldest(track, messages)
            if messages.times[message] > last_plausible:
                _join(message, facts, out)
            else:
                plausible[count] = message
                count += 1
        for message in plausible[:count]:
            _push(np.uint32(row), message, known.tracks, messages)
    _give_out(STALL, known, messages, out)
    facts[OUTNUMBERED] = 0
    for row in range(len(known.tracks) - 1):
        if facts[DOUBTFUL] and known.tracks[row, TRACKED]:
            _regrid(row, start, known)
    facts[HIGH_WATER] = start
    _open_window(start, ZERO, known, messages, out)


@_inlined
def _follow(oldest: int, newest: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.follow`."""
    facts, times = known.facts, messages.times
    traffic = np.empty(facts[JOINED] - facts[ACTIVE_FROM], np.int64)
    count, stop = 0, int(facts[ACTIVE_FROM])
    for place in range(stop, facts[JOINED]):
        message = out.joined[place]
        if oldest <= times[message] <= newest:
            traffic[count] = message
            count += 1
        else:
            out.joined[stop] = message
            stop += 1
    facts[JOINED] = stop
    facts[STRAYS] -= count
    batches = facts[BATCHES]
    _place_anew(oldest, known, messages, out)
    if out.batches[batches, UNTIL] == (out.batches[batches - 1, UNTIL] if batches else 0):
        facts[BATCHES] = batches  # the batch that this closes is empty
    mark, cut_at = BEFORE_ALL, facts[CUT_AT]
    for message in traffic[:count]:
        if _place(messages.rows[message], message, known, messages, out):
            mark = max(mark, times[message])
    facts[HIGH_WATER] = max(facts[HIGH_WATER], min(mark, facts[WINDOW_START] + _ahead(facts)))
    if facts[CUT_AT] < cut_at:
        _cut(known, messages, out)


@_internal
def _with_piled(times: Ints, known: Known, messages: WaitingMessages) -> Ints:
    """Collect the event times of all messages that wait behind others."""
    together = np.empty(len(times) + known.facts[ALL_PILED], np.int64)
    for k in range(len(times)):
        together[k] = times[k]
    count = len(times)
    for row in range(len(known.tracks)):
        if not known.tracks[row, PILED]:
            continue
        heap = np.empty(known.tracks[row, PILED] + 1, np.int64)
        heap[0] = known.tracks[row, ROOT]
        open_ = 1
        while open_:
            open_ -= 1
            message = heap[open_]
            together[count] = messages.times[message]
            count += 1
            for child in (messages.links[message, LEFT], messages.links[message, RIGHT]):
                if child != NONE:
                    heap[open_] = child
                    open_ += 1
    return together


@_internal
def _recover(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    end = min(facts[CUT_AT], start + length)
    active = facts[JOINED] - facts[ACTIVE_FROM]
    if active:
        recent = facts[UNMOVED] or active
        times = np.empty(recent, np.int64)
        for k in range(recent):
            times[k] = messages.times[out.joined[facts[JOINED] - 1 - k]]
        oldest, anchor = _plausible_range(times, length, TRUE)
        if facts[ALL_PILED] and _plausible_range(_with_piled(times, known, messages), length, TRUE)[1] != anchor:
            anchor = end
        if start <= anchor <= end:
            _give_out(STALL, known, messages, out)
            _skip(ONE, known, messages, out)
        elif oldest > _era_until(start, length) and _apart(oldest, anchor) >= np.uint64(MOVING * length):
            _follow(oldest, anchor, known, messages, out)
        else:
            _place_anew(anchor, known, messages, out)
    elif facts[ALL_PILED]:
        _skip(max(1, _windows_to_first(FALSE, known, messages)), known, messages, out)
    _close_complete(known, messages, out)
    _moved(facts[DOUBTFUL] == 1 and _in_era(facts[WINDOW_START], start, length), facts)
    facts[SINCE] = facts[LOOKED]


@_inlined
def _gives_way(
    first: int, stop: int, mark: int, held: int, known: Known, messages: WaitingMessages, out: KernelOutput
) -> bool:
    """Recover if a rival's traffic has moved on, as `RateAwareBatcher.take` does before it closes anything."""
    facts = known.facts
    if first == stop:
        return False
    start, length = int(facts[WINDOW_START]), int(facts[LENGTH])
    facts[UNMOVED] += facts[JOINED] - held
    if not _is_stuck(messages.times, first, stop, mark, start, length, facts):
        return False
    contested = _is_contested(length, facts)
    _recover(known, messages, out)
    if contested and not _in_era(facts[WINDOW_START], start, length):
        facts[DOUBTFUL] = 0
    return True


@_inlined
def _add(  # noqa: C901  # a call for each message would cost more than its work
    first: int, stop: int, now: int, known: Known, messages: WaitingMessages, out: KernelOutput
) -> None:
    facts = known.facts
    facts[LOOKED] = now
    facts[SINCE] = min(facts[SINCE], now)
    if not facts[BEGUN]:
        if first < stop:
            _begin(first, stop, known, messages, out)
            facts[SINCE] = now
        return
    if facts[JOINED] == facts[ACTIVE_FROM] and not facts[ALL_PILED]:
        _moved(facts[DOUBTFUL] == 1, facts)
        facts[SINCE] = now
    start, length = facts[WINDOW_START], facts[LENGTH]
    high_water, held, cut_at = facts[HIGH_WATER], facts[JOINED], facts[CUT_AT]
    _take(first, stop, known, messages, out)
    if facts[CUT_AT] < cut_at:
        _cut(known, messages, out)
        held = min(held, facts[JOINED])
    rivalled = _is_rivalled(facts)
    closed, stalled = False, rivalled and _gives_way(first, stop, high_water, held, known, messages, out)
    if not stalled and (not facts[WAITING] or facts[ALL_PILED] or _has_timed_out(start, facts)):
        closed = _close_complete(known, messages, out)
    if not closed and not stalled:
        if facts[HIGH_WATER] > high_water:
            _moved(rivalled, facts)
        elif first < stop and not rivalled:
            facts[UNMOVED] += facts[JOINED] - held
            stalled = _is_stuck(messages.times, first, stop, high_water, start, length, facts)
        if stalled or now - facts[SINCE] >= STALLED * length:
            _recover(known, messages, out)
    if closed:
        _moved(rivalled, facts)
        facts[SINCE] = now


@_inlined
def _flush(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    while facts[JOINED] > facts[ACTIVE_FROM] or facts[ALL_PILED]:
        steps = 1
        if facts[JOINED] > facts[ACTIVE_FROM]:
            _give_out(FLUSH, known, messages, out)
        else:
            steps = max(1, _windows_to_first(FALSE, known, messages))
        _skip(steps, known, messages, out)
    facts[UNMOVED] = facts[ERAS] = 0
    facts[SINCE] = facts[LOOKED]


# Arrow's memory is read-only, and Numba compiles for that only if the signature says so.
_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_flags_in = types.Array(types.boolean, 1, "C", readonly=True)
_ints = types.Array(types.int64, 1, "C")
_tables = types.Array(types.int64, 2, "C")
_links = types.Array(types.int32, 2, "C")


@_inlined
def _run(
    first_call: int,
    calls: Ints,
    clock: Ints,
    flush: bool,
    known: Known,
    messages: WaitingMessages,
    out: KernelOutput,
) -> None:
    """Run the calls of a source, ``first_call`` of which has the first reading of ``clock``."""
    facts = known.facts
    facts[JOINED] = facts[ACTIVE_FROM] = facts[BATCHES] = facts[ALL_PILED] = 0
    for row in range(len(known.tracks)):
        known.tracks[row, ROOT] = NONE
        known.tracks[row, PILED] = 0
    for message in range(calls[0]):
        if messages.links[message, WAITS_FOR] == NONE:
            _join(message, facts, out)
        else:
            _push(np.uint32(messages.links[message, WAITS_FOR]), message, known.tracks, messages)
            facts[ALL_PILED] += 1
    for call in range(len(calls) - 1):
        now = clock[first_call + call] if len(clock) else facts[LOOKED]
        _add(calls[call], calls[call + 1], now, known, messages, out)
    if flush:
        _flush(known, messages, out)


@njit(
    types.int64(
        *[_codes_in, _times_in, _times_in, _times_in, _times_in, _times_in, _times_in, _flags_in],
        *[_tables, _tables, _tables, _links, _ints, _tables, _ints, _ints, _ints],
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def run(
    rows: Codes,
    times: Ints,
    bounds: Ints,
    calls: Ints,
    call_bounds: Ints,
    clock: Ints,
    track_bounds: Ints,
    flush: Flags,
    facts: Table,
    tracks: Table,
    rings: Table,
    links: Links,
    joined: Ints,
    batches: Table,
    batch_bounds: Ints,
    given: Ints,
    kept: Ints,
) -> int:
    """Run the calls of some sources; see `RateAwareColumns`, which has one, and `RateAwareMany`.

    Source s has the messages ``bounds[s]`` to ``bounds[s + 1]``, whose tracks are in ``rows``, and the places of
    ``calls`` from ``call_bounds[s]`` to ``call_bounds[s + 1]``. Each place counts from the source's first message; a
    call brings the messages from its place to the next one. Messages before the first call are from earlier runs: they
    are in the window if WAITS_FOR is NONE, and otherwise wait for that track. If ``clock`` is not empty, it has a
    reading for each call. The source has the tracks ``track_bounds[s]`` to ``track_bounds[s + 1]`` and a row of
    ``facts``; ``flush[s]`` is true to return all of it. Afterwards WAITS_FOR is up to date, and the source has the
    batches ``batch_bounds[s]`` to ``batch_bounds[s + 1]``, the last of which ends before ``given[…]`` of its UNTIL. Its
    remaining messages are in ``kept``, whose length is returned. ``joined`` and ``batches`` have one more place for
    each source.
    """
    count = given_out = keeps = 0
    for source in range(len(bounds) - 1):
        first, stop = bounds[source], bounds[source + 1]
        first_call, last_call = call_bounds[source], call_bounds[source + 1]
        if flush[source] or last_call - first_call > 1:
            known, own, place = facts[source], slice(track_bounds[source], track_bounds[source + 1]), first + source
            _run(
                first_call - source,
                calls[first_call:last_call],
                clock,
                flush[source],
                Known(known, tracks[own], rings[own]),
                WaitingMessages(rows[first:stop], times[first:stop], links[first:stop]),
                KernelOutput(joined[place:], batches[place:]),
            )
            for k in range(known[BATCHES]):
                for column in range(BATCH_COLUMNS):
                    batches[count + k, column] = batches[place + k, column]
                batches[count + k, UNTIL] += given_out
            count += known[BATCHES]
            for k in range(known[ACTIVE_FROM]):
                given[given_out + k] = first + joined[place + k]
            given_out += known[ACTIVE_FROM]
            for k in range(known[ACTIVE_FROM], known[JOINED]):
                kept[keeps] = first + joined[place + k]
                keeps += 1
            for message in range(first, stop):
                if links[message, WAITS_FOR] != NONE:
                    kept[keeps] = message
                    keeps += 1
        else:
            for message in range(first, stop):
                kept[keeps] = message
                keeps += 1
        batch_bounds[source + 1] = count
    return keeps
