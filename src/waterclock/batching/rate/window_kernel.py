"""The window in progress of batching by rate, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from waterclock.batching.rate.rule import ABSENT, HORIZON
from waterclock.batching.rate.starts_kernel import begin_start, free_start
from waterclock.batching.rate.stream_kernel import (
    ABSENT_BATCHES,
    ACTIVE_FROM,
    ALL_PILED,
    BATCHES,
    BEFORE_ALL,
    CONTRIBUTING,
    FAR_FROM,
    GATING,
    HELD_UNTIL,
    HIGH_WATER,
    JOINED,
    KEPT,
    LENGTH,
    NEVER,
    NEWEST,
    NEXT_KEPT,
    NEXT_LENGTH,
    NEXT_TIMEOUT,
    NONE,
    OVER_FROM,
    PILE_NEWEST,
    PILED,
    PRESENT,
    RATE,
    ROOT,
    SATISFIED,
    SETTLED,
    STRAYS,
    TIMEOUT_NS,
    TRACKED,
    WAITING,
    WINDOW_START,
    Ints,
    Known,
    Waiting,
    merge,
    notice,
    place_track,
    regrid,
    windows_to,
)


class Out(NamedTuple):
    """Messages in the order in which they joined a window; by batch its window, closing, reason and where it ends."""

    joined: Ints
    starts: Ints
    ends: Ints
    closed: Ints
    reasons: Ints
    until: Ints


@njit(error_model="numpy")
def join(message: int, facts: Ints, out: Out) -> None:
    """Let a message join the window."""
    out.joined[facts[JOINED]] = message
    facts[JOINED] += 1


@njit(error_model="numpy")
def notice_and_count(track: Ints, event_time: int, facts: Ints) -> None:
    """As `Assembly.notice`."""
    present, satisfied = track[PRESENT], track[SATISFIED]
    notice(track, event_time)
    if track[RATE]:
        facts[CONTRIBUTING] += track[PRESENT] - present
        facts[WAITING] -= track[SATISFIED] - satisfied


@njit(error_model="numpy")
def windows_to_first(gating_only: bool, known: Known, messages: Waiting) -> int:
    """As `Assembly.windows_to_first`."""
    nearest = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[PILED] and (track[RATE] or not gating_only):
            oldest = int(messages.times[int(track[ROOT])])
            nearest = min(nearest, windows_to(track, oldest, known.facts[WINDOW_START], known.facts[LENGTH]))
    return 0 if nearest == NEVER else nearest


@njit(error_model="numpy")
def gap(known: Known, messages: Waiting) -> int:
    """As `Assembly.gap`."""
    facts = known.facts
    if not facts[ALL_PILED]:
        return 0
    if not facts[GATING]:
        empty = facts[JOINED] - facts[ACTIVE_FROM] <= facts[STRAYS]
        return windows_to_first(False, known, messages) if empty else 0
    if facts[CONTRIBUTING]:
        return 0
    for row in range(len(known.tracks)):
        if known.tracks[row, RATE] and not known.tracks[row, PILED]:
            return 0
    return windows_to_first(True, known, messages)


@njit(error_model="numpy")
def _let_in(track: Ints, facts: Ints, messages: Waiting, out: Out) -> None:
    times, left, right, waits_for = messages  # a field looked up in the loop would cost more than all else in it
    joined = out.joined
    root, piled, over_from = int(track[ROOT]), track[PILED], track[OVER_FROM]
    first = last = facts[JOINED]
    while piled and times[root] < over_from:
        joined[last] = root
        last += 1
        piled -= 1
        waits_for[root] = NONE
        lower = int(left[root])
        root = lower if right[root] == NONE else merge(lower, int(right[root]), messages)
    if last > first:
        track[ROOT], track[PILED], facts[JOINED] = root, piled, last
        oldest, newest = int(times[joined[first]]), int(times[joined[last - 1]])
        facts[HIGH_WATER] = max(facts[HIGH_WATER], newest)
        notice(track, oldest)
        notice(track, newest)
    if piled and track[RATE] and times[root] < track[FAR_FROM]:
        track[SATISFIED] = 1


@njit(error_model="numpy")
def _change_length(start: int, known: Known) -> None:
    facts = known.facts
    facts[LENGTH], facts[TIMEOUT_NS] = facts[NEXT_LENGTH], facts[NEXT_TIMEOUT]
    facts[NEXT_LENGTH] = 0
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            regrid(row, start, known)


@njit(error_model="numpy")
def open_window(start: int, steps: int, known: Known, messages: Waiting, out: Out) -> None:
    """As `Assembly.open`."""
    facts = known.facts
    free = free_start(start, facts)
    steps *= free == start  # elsewhere, as after a change of length, nothing is just moved on
    start = free
    if facts[NEXT_LENGTH]:
        _change_length(start, known)
        steps = 0
    length = facts[LENGTH]
    begin_start(start, length, facts)
    facts[WINDOW_START] = start
    facts[GATING] = facts[CONTRIBUTING] = facts[WAITING] = facts[ALL_PILED] = 0
    newest_waiting = BEFORE_ALL
    newest_gating = start + length
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        place_track(track, start, length, steps)
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
    facts[HELD_UNTIL] = newest_gating + HORIZON * length
    if not facts[GATING]:
        facts[WAITING] = NONE
        if facts[ALL_PILED]:
            facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest_waiting, start + HORIZON * length))


@njit(error_model="numpy")
def _review(known: Known) -> None:
    for row in range(len(known.tracks) - 1):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PRESENT]:
            track[ABSENT_BATCHES] = 0
            regrid(row, known.facts[WINDOW_START], known)
            continue
        track[ABSENT_BATCHES] += 1
        if track[ABSENT_BATCHES] >= ABSENT:
            track[NEWEST] = NEVER
            track[KEPT] = track[NEXT_KEPT] = 0
            track[RATE] = track[SETTLED] = 0
            if not track[PILED]:
                track[TRACKED] = track[ABSENT_BATCHES] = 0


@njit(error_model="numpy")
def write_batch(start: int, end: int, reason: int, facts: Ints, out: Out) -> None:
    """Close a batch of all that has joined."""
    number = facts[BATCHES]
    out.starts[number] = start
    out.ends[number] = end
    out.closed[number] = facts[HIGH_WATER]
    out.reasons[number] = reason
    out.until[number] = facts[JOINED]
    facts[BATCHES] += 1
    facts[ACTIVE_FROM] = facts[JOINED]
    facts[STRAYS] = 0


@njit(error_model="numpy")
def give_out(reason: int, known: Known, out: Out) -> None:
    """As `Assembly.close`, up to the opening of the next window."""
    start = known.facts[WINDOW_START]
    write_batch(start, start + known.facts[LENGTH], reason, known.facts, out)
    _review(known)
