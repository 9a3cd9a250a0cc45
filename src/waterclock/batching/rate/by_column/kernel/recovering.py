"""Begins a window at another time after a stall; see `recovery`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column.layout import (
    ACTIVE_FROM,
    ALL_PILED,
    BATCHES,
    BEFORE_ALL,
    CUT_AT,
    DOUBTFUL,
    FALSE,
    FURTHEST,
    HIGH_WATER,
    JOINED,
    LENGTH,
    LOOKED,
    NEVER,
    ONE,
    OUTNUMBERED,
    PILE_NEWEST,
    PILED,
    SETBACKS,
    SINCE,
    STALL,
    STRAYS,
    TRACKED,
    TRUE,
    TRUSTED_FROM,
    UNMOVED,
    UNTIL,
    WINDOW_START,
    ZERO,
)
from waterclock.batching.rate.rule import MOVING

from .arrays import KernelOutput, Known, WaitingMessages, inlined, internal
from .eras import apart, era_until, in_era, placed, plausible_range
from .piles import push, take_oldest, with_piled
from .placing import place_message
from .stalls import is_contested, is_stuck, note_move
from .starts import free_start
from .tracks import regrid
from .windows import ahead, close_complete, cut, give_out, join, open_window, skip, windows_to_first


@internal
def _place_anew(anchor: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    start = placed(anchor, facts[LENGTH])
    facts[DOUBTFUL] = not in_era(start, facts[WINDOW_START], facts[LENGTH])
    facts[TRUSTED_FROM] = NEVER
    if start <= facts[FURTHEST]:
        facts[SETBACKS] += 1
        start = free_start(start + facts[SETBACKS], facts)
    last_plausible = start + facts[LENGTH] + ahead(facts)
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[PILED] or track[PILE_NEWEST] <= last_plausible:
            continue
        plausible = np.empty(track[PILED], np.int64)
        count = 0
        while track[PILED]:
            message = take_oldest(track, messages)
            if messages.times[message] > last_plausible:
                join(message, facts, out)
            else:
                plausible[count] = message
                count += 1
        for message in plausible[:count]:
            push(np.uint32(row), message, known.tracks, messages)
    give_out(STALL, known, messages, out)
    facts[OUTNUMBERED] = 0
    for row in range(len(known.tracks) - 1):
        if facts[DOUBTFUL] and known.tracks[row, TRACKED]:
            regrid(row, start, known)
    facts[HIGH_WATER] = start
    open_window(start, ZERO, known, messages, out)


@inlined
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
        if place_message(messages.rows[message], message, known, messages, out):
            mark = max(mark, times[message])
    facts[HIGH_WATER] = max(facts[HIGH_WATER], min(mark, facts[WINDOW_START] + ahead(facts)))
    if facts[CUT_AT] < cut_at:
        cut(known, messages, out)


@internal
def recover(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    end = min(facts[CUT_AT], start + length)
    active = facts[JOINED] - facts[ACTIVE_FROM]
    if active:
        recent = facts[UNMOVED] or active
        times = np.empty(recent, np.int64)
        for k in range(recent):
            times[k] = messages.times[out.joined[facts[JOINED] - 1 - k]]
        oldest, anchor = plausible_range(times, length, TRUE)
        if facts[ALL_PILED] and plausible_range(with_piled(times, known, messages), length, TRUE)[1] != anchor:
            anchor = end
        if start <= anchor <= end:
            give_out(STALL, known, messages, out)
            skip(ONE, known, messages, out)
        elif oldest > era_until(start, length) and apart(oldest, anchor) >= np.uint64(MOVING * length):
            _follow(oldest, anchor, known, messages, out)
        else:
            _place_anew(anchor, known, messages, out)
    elif facts[ALL_PILED]:
        skip(max(1, windows_to_first(FALSE, known, messages)), known, messages, out)
    close_complete(known, messages, out)
    note_move(facts[DOUBTFUL] == 1 and in_era(facts[WINDOW_START], start, length), facts)
    facts[SINCE] = facts[LOOKED]


@inlined
def gives_way(
    first: int, stop: int, mark: int, held: int, known: Known, messages: WaitingMessages, out: KernelOutput
) -> bool:
    """Recover if a rival's traffic has moved on, as `RateAwareBatcher.take` does before it closes anything."""
    facts = known.facts
    if first == stop:
        return False
    start, length = int(facts[WINDOW_START]), int(facts[LENGTH])
    facts[UNMOVED] += facts[JOINED] - held
    if not is_stuck(messages.times, first, stop, mark, start, length, facts):
        return False
    contested = is_contested(length, facts)
    recover(known, messages, out)
    if contested and not in_era(facts[WINDOW_START], start, length):
        facts[DOUBTFUL] = 0
    return True
