"""The window in progress of batching by rate, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from waterclock.batching.rate_rule import ABSENT, HORIZON
from waterclock.batching.track_kernel import (
    ABSENT_BATCHES,
    ACTIVE_FROM,
    ALL_PILED,
    BATCHES,
    BEFORE_ALL,
    CONTRIBUTING,
    FAR_FROM,
    FURTHEST,
    GATING,
    HELD_UNTIL,
    HIGH_WATER,
    JOINED,
    KEPT,
    NEVER,
    NEWEST,
    NEXT_KEPT,
    NONE,
    NOTICE_FROM,
    OVER_FROM,
    PILE_NEWEST,
    PILED,
    PRESENT,
    RATE,
    ROOT,
    SATISFIED,
    SETTLED,
    STRAYS,
    TRACKED,
    WAITING,
    WINDOW_START,
    Ints,
    Known,
    Rule,
    Waiting,
    notice,
    place_track,
    regrid,
    take_oldest,
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
def windows_to_first(gating_only: bool, known: Known, messages: Waiting, rule: Rule) -> int:
    """As `Assembly.windows_to_first`."""
    nearest = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[PILED] and (track[RATE] or not gating_only):
            oldest = int(messages.times[int(track[ROOT])])
            nearest = min(nearest, windows_to(track, oldest, known.facts[WINDOW_START], rule.length))
    return 0 if nearest == NEVER else nearest


@njit(error_model="numpy")
def gap(known: Known, messages: Waiting, rule: Rule) -> int:
    """As `Assembly.gap`."""
    facts = known.facts
    if not facts[ALL_PILED]:
        return 0
    if not facts[GATING]:
        empty = facts[JOINED] - facts[ACTIVE_FROM] <= facts[STRAYS]
        return windows_to_first(False, known, messages, rule) if empty else 0
    if facts[CONTRIBUTING]:
        return 0
    for row in range(len(known.tracks)):
        if known.tracks[row, RATE] and not known.tracks[row, PILED]:
            return 0
    return windows_to_first(True, known, messages, rule)


@njit(error_model="numpy")
def _let_in(track: Ints, facts: Ints, messages: Waiting, out: Out) -> None:
    while track[PILED] and messages.times[track[ROOT]] < track[OVER_FROM]:
        message = take_oldest(track, messages)
        join(message, facts, out)
        facts[HIGH_WATER] = max(facts[HIGH_WATER], messages.times[message])
        if messages.times[message] >= track[NOTICE_FROM]:
            notice(track, messages.times[message])
    if track[PILED] and track[RATE] and messages.times[track[ROOT]] < track[FAR_FROM]:
        track[SATISFIED] = 1


@njit(error_model="numpy")
def open_window(start: int, steps: int, known: Known, messages: Waiting, rule: Rule, out: Out) -> None:
    """As `Assembly.open`."""
    facts = known.facts
    facts[WINDOW_START] = start
    facts[FURTHEST] = max(facts[FURTHEST], start)
    facts[GATING] = facts[CONTRIBUTING] = facts[WAITING] = facts[ALL_PILED] = 0
    newest_waiting = BEFORE_ALL
    newest_gating = start + rule.length
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        place_track(track, start, rule, steps)
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
    facts[HELD_UNTIL] = newest_gating + HORIZON * rule.length
    if not facts[GATING]:
        facts[WAITING] = NONE
        if facts[ALL_PILED]:
            facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest_waiting, start + HORIZON * rule.length))


@njit(error_model="numpy")
def _review(known: Known, rule: Rule) -> None:
    for row in range(len(known.tracks) - 1):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PRESENT]:
            track[ABSENT_BATCHES] = 0
            regrid(row, known.facts[WINDOW_START], rule, known)
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
def give_out(reason: int, known: Known, rule: Rule, out: Out) -> None:
    """As `Assembly.close`, up to the opening of the next window."""
    start = known.facts[WINDOW_START]
    write_batch(start, start + rule.length, reason, known.facts, out)
    _review(known, rule)
