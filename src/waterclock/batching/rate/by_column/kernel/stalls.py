"""Counts messages with implausible event times (another era), and detects stalled sources; see `stall`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.rule import ERA, HORIZON, MOST_ERAS, MOST_UNMOVED, PACE, STALLED

from .arrays import Ints, internal
from .eras import apart, era_until, within

# Places of the other facts of a piece of traffic elsewhere, after its oldest event time.
_UNTIL, _COVERED, _CALLS, _MARK = 1, 2, 3, 4


@internal
def _move_elsewhere(from_: int, to: int, facts: Ints) -> None:
    for column in range(at.ELSEWHERE_COLUMNS):
        facts[to + column] = facts[from_ + column]


@internal
def _add_elsewhere(oldest: int, newest: int, covered: int, mark: int, length: int, facts: Ints) -> None:
    era, enough = np.uint64(ERA * length), STALLED * length
    calls = 1
    place = at.ELSEWHERE_FROM  # the row to which the next kept era moves
    for k in range(facts[at.ERAS]):
        known = at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * k
        from_, until = int(facts[known]), int(facts[known + _UNTIL])
        if (oldest > until and apart(until, oldest) > era) or (from_ > newest and apart(newest, from_) > era):
            _move_elsewhere(known, place, facts)
            place += at.ELSEWHERE_COLUMNS
            continue
        before = int(facts[known + _COVERED])
        joined = max(covered, before)
        if newest > until:
            gap = within(until, oldest, HORIZON * length) if oldest > until else 0
            joined = max(joined, min(before + within(until, newest, covered + gap), enough))
        oldest, newest, covered, calls = min(oldest, from_), max(newest, until), joined, 2
        mark = int(facts[known + _MARK])
    if place == at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * MOST_ERAS:
        place = at.ELSEWHERE_FROM
        for _ in range(1, MOST_ERAS):
            _move_elsewhere(place + at.ELSEWHERE_COLUMNS, place, facts)
            place += at.ELSEWHERE_COLUMNS
    facts[place], facts[place + _UNTIL], facts[place + _COVERED] = oldest, newest, covered
    facts[place + _CALLS], facts[place + _MARK] = calls, mark
    facts[at.ERAS] = (place - at.ELSEWHERE_FROM) // at.ELSEWHERE_COLUMNS + 1


@internal
def _add_pieces_elsewhere(ordered: Ints, mark: int, length: int, facts: Ints) -> None:
    oldest = newest = ordered[0]
    covered = at.ZERO
    for k in range(len(ordered)):
        time = ordered[k]
        if apart(newest, time) > np.uint64(ERA * length):
            _add_elsewhere(oldest, newest, covered, mark, length, facts)
            oldest, covered = time, at.ZERO
        else:
            covered = min(covered + within(newest, time, HORIZON * length), STALLED * length)
        newest = time
    _add_elsewhere(oldest, newest, covered, mark, length, facts)


@internal
def _has_moved_on(known: int, length: int, facts: Ints) -> bool:
    """As `Elsewhere.has_moved_on`."""
    return bool(facts[known + _CALLS] > 1 and facts[known + _COVERED] >= STALLED * length)


@internal
def _keeps_pace(known: int, facts: Ints) -> bool:
    """As `Elsewhere.keeps_pace`, of the high-water mark."""
    span, mark = apart(int(facts[known]), int(facts[known + _UNTIL])), int(facts[known + _MARK])
    pace = np.uint64(PACE)
    whole = span // pace + np.uint64(span % pace > np.uint64(0))  # times the pace, the other side may overflow
    return bool(facts[at.HIGH_WATER] >= mark and whole <= apart(mark, int(facts[at.HIGH_WATER])))


@internal
def note_move(rivalled: bool, facts: Ints) -> None:
    """As `StallWatch.moved`."""
    facts[at.UNMOVED] = 0
    count = facts[at.ERAS] if rivalled else 0
    facts[at.ERAS] = 0
    for k in range(count):
        known = at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * k
        if _keeps_pace(known, facts):
            _move_elsewhere(known, at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * facts[at.ERAS], facts)
            facts[at.ERAS] += 1


@internal
def is_contested(length: int, facts: Ints) -> bool:
    """As `StallWatch.is_contested`."""
    for k in range(facts[at.ERAS]):
        known = at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * k
        if _has_moved_on(known, length, facts) and _keeps_pace(known, facts):
            return True
    return False


@internal
def is_stuck(times: Ints, first: int, stop: int, mark: int, start: int, length: int, facts: Ints) -> bool:
    """As `StallWatch.is_stuck`, for the event times of a call and the window at ``start``.

    The messages that joined are already counted.
    """
    near_from, latest = start - HORIZON * length, era_until(start, length)
    count = 0
    for message in range(first, stop):
        count += times[message] < near_from or times[message] > latest
    if count:
        implausible = np.empty(count, np.int64)
        count = 0
        for message in range(first, stop):
            if times[message] < near_from or times[message] > latest:
                implausible[count] = times[message]
                count += 1
        _add_pieces_elsewhere(np.sort(implausible), mark, length, facts)
        for k in range(facts[at.ERAS]):
            if _has_moved_on(at.ELSEWHERE_FROM + at.ELSEWHERE_COLUMNS * k, length, facts):
                return True
    return bool(facts[at.UNMOVED] >= MOST_UNMOVED)
