"""Places the messages of a call in windows; see `batcher`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column.layout import (
    ALL_PILED,
    AUTO,
    BEFORE_ALL,
    BEGUN,
    CUT_AT,
    DISORDER,
    DOUBTFUL,
    FALSE,
    FAR_FROM,
    FURTHEST,
    GATING,
    HELD_UNTIL,
    HIGH_WATER,
    JOINED,
    KEPT,
    LAST_FROM,
    LENGTH,
    NEWEST,
    NEXT_KEPT,
    NOTICE_FROM,
    ONE,
    OVER_FROM,
    RATE,
    ROLE,
    SATISFIED,
    SLOWEST,
    START,
    STRAYS,
    TRACKED,
    TRUSTED_FROM,
    WAITING,
    WINDOW_START,
    ZERO,
)
from waterclock.batching.rate.period import KEPT_DIFFERENCES
from waterclock.batching.rate.rule import CUTS, ERA, GATES, HORIZON, MOST_AWAITED, STALLED

from .arrays import KernelOutput, Known, WaitingMessages, inlined, internal
from .eras import era_until, placed, plausible_range
from .piles import by_time, push, push_behind
from .starts import remember_run
from .tracks import begin_track, observe, regrid
from .windows import ahead, join, notice_and_count, open_window, write_batch


@internal
def _place_ahead(row: int, message: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts, track = known.facts, known.tracks[row]
    event_time = messages.times[message]
    if not track[RATE] and track[ROLE] != CUTS and facts[GATING] and event_time > facts[HELD_UNTIL]:
        join(message, facts, out)
        if event_time >= track[NOTICE_FROM]:
            notice_and_count(track, event_time, facts)
        return
    push(row, message, known.tracks, messages)
    facts[ALL_PILED] += 1
    if track[ROLE] == CUTS and event_time <= facts[WINDOW_START] + facts[LENGTH]:
        facts[CUT_AT] = min(facts[CUT_AT], event_time)
    if not track[RATE]:
        return
    facts[HELD_UNTIL] = max(facts[HELD_UNTIL], event_time + ahead(facts))
    if not track[SATISFIED] and track[LAST_FROM] <= event_time < track[FAR_FROM]:
        track[SATISFIED] = 1
        facts[WAITING] -= 1


@internal
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


@internal
def place_message(row: int, message: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    event_time = messages.times[message]
    start, length = facts[WINDOW_START], facts[LENGTH]
    if event_time < start - ERA * length or event_time > era_until(start, length):
        join(message, facts, out)
        facts[STRAYS] += 1
        return False
    track = known.tracks[row]
    if not track[TRACKED]:
        begin_track(row, known)
    if not facts[DISORDER]:
        observe(row, event_time, HORIZON * length, known)
    if event_time >= track[OVER_FROM]:
        _place_ahead(row, message, known, messages, out)
        return True
    join(message, facts, out)
    if event_time >= track[NOTICE_FROM]:
        notice_and_count(track, event_time, facts)
    return True


@inlined  # and no views: both cost more than everything else for a single message
def take(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts, tracks, rings, rows = known.facts, known.tracks, known.rings, messages.rows
    newest = BEFORE_ALL
    length = facts[LENGTH]
    # With a disorder, every message goes through `_place`.
    latest = BEFORE_ALL if facts[DISORDER] else era_until(facts[WINDOW_START], length)
    for message in range(first, stop):
        row = rows[message]
        event_time = messages.times[message]
        if tracks[row, TRACKED] and tracks[row, NEWEST] < event_time <= latest:
            if tracks[row, ROLE] == GATES:
                rings[row, tracks[row, NEXT_KEPT]] = event_time - tracks[row, NEWEST]
                tracks[row, NEXT_KEPT] = (tracks[row, NEXT_KEPT] + 1) % KEPT_DIFFERENCES
                tracks[row, KEPT] = min(tracks[row, KEPT] + 1, KEPT_DIFFERENCES)
            tracks[row, NEWEST] = event_time
            if event_time >= tracks[row, OVER_FROM]:
                held = tracks[row, RATE] or not facts[GATING] or event_time <= facts[HELD_UNTIL]
                if held and push_behind(row, message, tracks, messages):
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
                    notice_and_count(tracks[row], event_time, facts)
        elif not place_message(row, message, known, messages, out):
            continue
        newest = max(newest, event_time)
    if facts[AUTO]:
        _note_delays(first, stop, known, messages)
    facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest, facts[WINDOW_START] + ahead(facts)))


@internal
def begin_source(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    length = facts[LENGTH]
    oldest, newest = plausible_range(messages.times[first:stop].copy(), length, FALSE)
    start = placed(newest, length)
    facts[BEGUN] = 1
    facts[WINDOW_START] = facts[HIGH_WATER] = start
    facts[DOUBTFUL], facts[TRUSTED_FROM] = 1, start + STALLED * length
    begin_track(np.uint32(len(known.tracks) - 1), known)
    for message in range(first, stop):
        join(message, facts, out)
    joined = out.joined[: facts[JOINED]]
    for message in by_time(joined, messages) if facts[DISORDER] else joined:
        row, event_time = messages.rows[message], messages.times[message]
        if start - ERA * length <= event_time <= start:
            if not known.tracks[row, TRACKED]:
                begin_track(row, known)
            observe(row, event_time, 2 * ERA * length, known)  # more than possible
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            regrid(row, start, known)
    begin = min(oldest, start - 1)
    write_batch(begin, start, START, facts, out)
    facts[FURTHEST] = begin
    open_window(start, ZERO, known, messages, out)
    remember_run(begin, begin, ONE, facts)
