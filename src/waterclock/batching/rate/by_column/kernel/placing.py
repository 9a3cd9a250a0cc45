"""Places the messages of a call in windows; see `batcher`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
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
    if not track[at.RATE] and track[at.ROLE] != CUTS and facts[at.GATING] and event_time > facts[at.HELD_UNTIL]:
        join(message, facts, out)
        if event_time >= track[at.NOTICE_FROM]:
            notice_and_count(track, event_time, facts)
        return
    push(row, message, known.tracks, messages)
    facts[at.ALL_PILED] += 1
    if track[at.ROLE] == CUTS and event_time <= facts[at.WINDOW_START] + facts[at.LENGTH]:
        facts[at.CUT_AT] = min(facts[at.CUT_AT], event_time)
    if not track[at.RATE]:
        return
    facts[at.HELD_UNTIL] = max(facts[at.HELD_UNTIL], event_time + ahead(facts))
    if not track[at.SATISFIED] and track[at.LAST_FROM] <= event_time < track[at.FAR_FROM]:
        track[at.SATISFIED] = 1
        facts[at.WAITING] -= 1


@internal
def _note_delays(first: int, stop: int, known: Known, messages: WaitingMessages) -> None:
    facts = known.facts
    mark = facts[at.HIGH_WATER] - facts[at.DISORDER]
    most = mark - MOST_AWAITED * facts[at.LENGTH]
    for message in range(first, stop):
        event_time = messages.times[message]
        if most <= event_time < mark - facts[at.SLOWEST]:
            track = known.tracks[messages.rows[message]]
            if track[at.TRACKED] and track[at.RATE]:
                facts[at.SLOWEST] = mark - event_time


@internal
def place_message(row: int, message: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    event_time = messages.times[message]
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    if event_time < start - ERA * length or event_time > era_until(start, length):
        join(message, facts, out)
        facts[at.STRAYS] += 1
        return False
    track = known.tracks[row]
    if not track[at.TRACKED]:
        begin_track(row, known)
    if not facts[at.DISORDER]:
        observe(row, event_time, HORIZON * length, known)
    if event_time >= track[at.OVER_FROM]:
        _place_ahead(row, message, known, messages, out)
        return True
    join(message, facts, out)
    if event_time >= track[at.NOTICE_FROM]:
        notice_and_count(track, event_time, facts)
    return True


@inlined  # and no views: both cost more than everything else for a single message
def take(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts, tracks, rings, rows = known.facts, known.tracks, known.rings, messages.rows
    newest = at.BEFORE_ALL
    length = facts[at.LENGTH]
    # With a disorder, every message goes through `_place`.
    latest = at.BEFORE_ALL if facts[at.DISORDER] else era_until(facts[at.WINDOW_START], length)
    for message in range(first, stop):
        row = rows[message]
        event_time = messages.times[message]
        if tracks[row, at.TRACKED] and tracks[row, at.NEWEST] < event_time <= latest:
            if tracks[row, at.ROLE] == GATES:
                rings[row, tracks[row, at.NEXT_KEPT]] = event_time - tracks[row, at.NEWEST]
                tracks[row, at.NEXT_KEPT] = (tracks[row, at.NEXT_KEPT] + 1) % KEPT_DIFFERENCES
                tracks[row, at.KEPT] = min(tracks[row, at.KEPT] + 1, KEPT_DIFFERENCES)
            tracks[row, at.NEWEST] = event_time
            if event_time >= tracks[row, at.OVER_FROM]:
                held = tracks[row, at.RATE] or not facts[at.GATING] or event_time <= facts[at.HELD_UNTIL]
                if held and push_behind(row, message, tracks, messages):
                    # The stream's gate stays as the message before left it.
                    facts[at.ALL_PILED] += 1
                    if tracks[row, at.RATE]:
                        facts[at.HELD_UNTIL] = max(facts[at.HELD_UNTIL], event_time + HORIZON * length)
                else:
                    _place_ahead(row, message, known, messages, out)
            else:
                out.joined[facts[at.JOINED]] = message
                facts[at.JOINED] += 1
                if event_time >= tracks[row, at.NOTICE_FROM]:
                    notice_and_count(tracks[row], event_time, facts)
        elif not place_message(row, message, known, messages, out):
            continue
        newest = max(newest, event_time)
    if facts[at.AUTO]:
        _note_delays(first, stop, known, messages)
    facts[at.HIGH_WATER] = max(facts[at.HIGH_WATER], min(newest, facts[at.WINDOW_START] + ahead(facts)))


@internal
def begin_source(first: int, stop: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    length = facts[at.LENGTH]
    oldest, newest = plausible_range(messages.times[first:stop].copy(), length, at.FALSE)
    start = placed(newest, length)
    facts[at.BEGUN] = 1
    facts[at.WINDOW_START] = facts[at.HIGH_WATER] = start
    facts[at.DOUBTFUL], facts[at.TRUSTED_FROM] = 1, start + STALLED * length
    begin_track(np.uint32(len(known.tracks) - 1), known)
    for message in range(first, stop):
        join(message, facts, out)
    joined = out.joined[: facts[at.JOINED]]
    for message in by_time(joined, messages) if facts[at.DISORDER] else joined:
        row, event_time = messages.rows[message], messages.times[message]
        if start - ERA * length <= event_time <= start:
            if not known.tracks[row, at.TRACKED]:
                begin_track(row, known)
            observe(row, event_time, 2 * ERA * length, known)  # more than possible
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, at.TRACKED]:
            regrid(row, start, known)
    begin = min(oldest, start - 1)
    write_batch(begin, start, at.START, facts, out)
    facts[at.FURTHEST] = begin
    open_window(start, at.ZERO, known, messages, out)
    remember_run(begin, begin, at.ONE, facts)
