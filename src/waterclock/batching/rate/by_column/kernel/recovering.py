"""Begins a window at another time after a stall; see `recovery`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
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
    start = placed(anchor, facts[at.LENGTH])
    facts[at.DOUBTFUL] = not in_era(start, facts[at.WINDOW_START], facts[at.LENGTH])
    facts[at.TRUSTED_FROM] = at.NEVER
    if start <= facts[at.FURTHEST]:
        facts[at.SETBACKS] += 1
        start = free_start(start + facts[at.SETBACKS], facts)
    last_plausible = start + facts[at.LENGTH] + ahead(facts)
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[at.PILED] or track[at.PILE_NEWEST] <= last_plausible:
            continue
        plausible = np.empty(track[at.PILED], np.int64)
        count = 0
        while track[at.PILED]:
            message = take_oldest(track, messages)
            if messages.times[message] > last_plausible:
                join(message, facts, out)
            else:
                plausible[count] = message
                count += 1
        for message in plausible[:count]:
            push(np.uint32(row), message, known.tracks, messages)
    give_out(at.STALL, known, messages, out)
    facts[at.OUTNUMBERED] = 0
    for row in range(len(known.tracks) - 1):
        if facts[at.DOUBTFUL] and known.tracks[row, at.TRACKED]:
            regrid(row, start, known)
    facts[at.HIGH_WATER] = start
    open_window(start, at.ZERO, known, messages, out)


@inlined
def _follow(oldest: int, newest: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.follow`."""
    facts, times = known.facts, messages.times
    traffic = np.empty(facts[at.JOINED] - facts[at.ACTIVE_FROM], np.int64)
    count, stop = 0, int(facts[at.ACTIVE_FROM])
    for place in range(stop, facts[at.JOINED]):
        message = out.joined[place]
        if oldest <= times[message] <= newest:
            traffic[count] = message
            count += 1
        else:
            out.joined[stop] = message
            stop += 1
    facts[at.JOINED] = stop
    facts[at.STRAYS] -= count
    batches = facts[at.BATCHES]
    _place_anew(oldest, known, messages, out)
    if out.batches[batches, at.UNTIL] == (out.batches[batches - 1, at.UNTIL] if batches else 0):
        facts[at.BATCHES] = batches  # the batch that this closes is empty
    mark, cut_at = at.BEFORE_ALL, facts[at.CUT_AT]
    for message in traffic[:count]:
        if place_message(messages.rows[message], message, known, messages, out):
            mark = max(mark, times[message])
    facts[at.HIGH_WATER] = max(facts[at.HIGH_WATER], min(mark, facts[at.WINDOW_START] + ahead(facts)))
    if facts[at.CUT_AT] < cut_at:
        cut(known, messages, out)


@internal
def recover(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    end = min(facts[at.CUT_AT], start + length)
    active = facts[at.JOINED] - facts[at.ACTIVE_FROM]
    if active:
        recent = facts[at.UNMOVED] or active
        times = np.empty(recent, np.int64)
        for k in range(recent):
            times[k] = messages.times[out.joined[facts[at.JOINED] - 1 - k]]
        oldest, anchor = plausible_range(times, length, at.TRUE)
        if facts[at.ALL_PILED] and plausible_range(with_piled(times, known, messages), length, at.TRUE)[1] != anchor:
            anchor = end
        if start <= anchor <= end:
            give_out(at.STALL, known, messages, out)
            skip(at.ONE, known, messages, out)
        elif oldest > era_until(start, length) and apart(oldest, anchor) >= np.uint64(MOVING * length):
            _follow(oldest, anchor, known, messages, out)
        else:
            _place_anew(anchor, known, messages, out)
    elif facts[at.ALL_PILED]:
        skip(max(1, windows_to_first(at.FALSE, known, messages)), known, messages, out)
    close_complete(known, messages, out)
    note_move(facts[at.DOUBTFUL] == 1 and in_era(facts[at.WINDOW_START], start, length), facts)
    facts[at.SINCE] = facts[at.LOOKED]


@inlined
def gives_way(
    first: int, stop: int, mark: int, held: int, known: Known, messages: WaitingMessages, out: KernelOutput
) -> bool:
    """Recover if a rival's traffic has moved on, as `RateAwareBatcher.take` does before it closes anything."""
    facts = known.facts
    if first == stop:
        return False
    start, length = int(facts[at.WINDOW_START]), int(facts[at.LENGTH])
    facts[at.UNMOVED] += facts[at.JOINED] - held
    if not is_stuck(messages.times, first, stop, mark, start, length, facts):
        return False
    contested = is_contested(length, facts)
    recover(known, messages, out)
    if contested and not in_era(facts[at.WINDOW_START], start, length):
        facts[at.DOUBTFUL] = 0
    return True
