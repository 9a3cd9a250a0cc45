"""The rules of batching by rate over arrays, compiled with Numba; by the names of `waterclock.batching.rate.window`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from waterclock.batching.rate import stall_kernel, starts_kernel, window_kernel
from waterclock.batching.rate import stream_kernel as track_kernel
from waterclock.batching.rate.period import KEPT_DIFFERENCES
from waterclock.batching.rate.rule import ABSENT, EPOCH, HORIZON, STALLED
from waterclock.batching.rate.stall_kernel import is_stuck
from waterclock.batching.rate.starts_kernel import free_start, remember_run
from waterclock.batching.rate.stream_kernel import (
    ACTIVE_FROM,
    ALL_PILED,
    BATCHES,
    BEFORE_ALL,
    BEGUN,
    COMPILED_FROM,
    EPOCHS,
    FAR_FROM,
    FURTHEST,
    GATING,
    HELD_UNTIL,
    HIGH_WATER,
    JOINED,
    KEPT,
    LENGTH,
    LOOKED,
    MAY_GATE,
    NEVER,
    NEWEST,
    NEXT_KEPT,
    NONE,
    NOTICE_FROM,
    OVER_FROM,
    PILE_NEWEST,
    PILED,
    RATE,
    ROOT,
    SATISFIED,
    SETBACKS,
    SINCE,
    STRAYS,
    TIMEOUT_NS,
    TRACKED,
    UNMOVED,
    WAITING,
    WINDOW_START,
    Codes,
    Ints,
    Known,
    Rows,
    Table,
    Waiting,
    begin_track,
    observe,
    placed,
    plausible_range,
    push,
    push_behind,
    regrid,
    take_oldest,
)
from waterclock.batching.rate.window_kernel import (
    Out,
    gap,
    give_out,
    join,
    notice_and_count,
    open_window,
    windows_to_first,
    write_batch,
)

SLOTS, GAP, TIMEOUT, STALL, FLUSH, START = range(6)
"""Why a batch closed, as the kernel writes it."""

REASONS = ("slots", "gap", "timeout", "stall", "flush", "start")


@njit(error_model="numpy")
def _settle(known: Known, messages: Waiting, out: Out) -> bool:
    facts = known.facts
    before = facts[BATCHES]
    while True:
        steps = gap(known, messages)
        if steps:
            reason = GAP
        elif not facts[WAITING]:
            reason = SLOTS
        elif facts[TIMEOUT_NS] != NEVER and facts[HIGH_WATER] >= facts[WINDOW_START] + facts[TIMEOUT_NS]:
            reason = TIMEOUT
        else:
            return facts[BATCHES] > before
        if facts[JOINED] > facts[ACTIVE_FROM]:
            give_out(reason, known, out)
        steps = max(steps, 1)
        open_window(facts[WINDOW_START] + steps * facts[LENGTH], steps, known, messages, out)


@njit(error_model="numpy")
def _place_ahead(row: int, message: int, known: Known, messages: Waiting, out: Out) -> None:
    facts, track = known.facts, known.tracks[row]
    event_time = messages.times[message]
    if not track[RATE] and facts[GATING] and event_time > facts[HELD_UNTIL]:
        join(message, facts, out)
        if event_time >= track[NOTICE_FROM]:
            notice_and_count(track, event_time, facts)
        return
    push(row, message, known.tracks, messages)
    facts[ALL_PILED] += 1
    if not track[RATE]:
        return
    facts[HELD_UNTIL] = max(facts[HELD_UNTIL], event_time + HORIZON * facts[LENGTH])
    if not track[SATISFIED] and event_time < track[FAR_FROM]:
        track[SATISFIED] = 1
        facts[WAITING] -= 1


@njit(error_model="numpy")
def _place(row: int, message: int, known: Known, messages: Waiting, out: Out) -> bool:
    facts = known.facts
    event_time = messages.times[message]
    start, length = facts[WINDOW_START], facts[LENGTH]
    if event_time < start - EPOCH * length or event_time > start + length + EPOCH * length:
        join(message, facts, out)
        facts[STRAYS] += 1
        return False
    track = known.tracks[row]
    if not track[TRACKED]:
        begin_track(row, known)
    observe(row, event_time, HORIZON * length, known)
    if event_time >= track[OVER_FROM]:
        _place_ahead(row, message, known, messages, out)
        return True
    join(message, facts, out)
    if event_time >= track[NOTICE_FROM]:
        notice_and_count(track, event_time, facts)
    return True


@njit(error_model="numpy", inline="always")  # and no views: both cost more than all else for a lone message
def _take(rows: Codes, first: int, stop: int, known: Known, messages: Waiting, out: Out) -> None:
    facts, tracks, rings = known.facts, known.tracks, known.rings
    newest = BEFORE_ALL
    length = facts[LENGTH]
    epoch_until = facts[WINDOW_START] + length + EPOCH * length
    for message in range(first, stop):
        row = rows[message]
        event_time = messages.times[message]
        if tracks[row, TRACKED] and tracks[row, NEWEST] < event_time <= epoch_until:
            if tracks[row, MAY_GATE]:
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
        elif not _place(row, message, known, messages, out):
            continue
        newest = max(newest, event_time)
    cap = facts[WINDOW_START] + HORIZON * length
    facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest, cap))


@njit(error_model="numpy")
def _begin(rows: Codes, first: int, stop: int, known: Known, messages: Waiting, out: Out) -> None:
    facts = known.facts
    length = facts[LENGTH]
    oldest, newest = plausible_range(messages.times[first:stop], length, False)
    start = placed(newest, length)
    facts[BEGUN] = 1
    facts[WINDOW_START] = facts[HIGH_WATER] = start
    begin_track(len(known.tracks) - 1, known)
    for message in range(first, stop):
        join(message, facts, out)
        event_time = messages.times[message]
        if start - EPOCH * length <= event_time <= start:
            if not known.tracks[rows[message], TRACKED]:
                begin_track(rows[message], known)
            observe(rows[message], event_time, 2 * EPOCH * length, known)  # more than there is
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            regrid(row, start, known)
    begin = min(oldest, start - 1)
    write_batch(begin, start, START, facts, out)
    facts[FURTHEST] = begin
    open_window(start, 0, known, messages, out)
    remember_run(begin, begin, 1, facts)


@njit(error_model="numpy")
def _place_anew(anchor: int, known: Known, messages: Waiting, out: Out) -> None:
    facts = known.facts
    start = placed(anchor, facts[LENGTH])
    if start <= facts[FURTHEST]:
        facts[SETBACKS] += 1
        start = free_start(start + facts[SETBACKS], facts)
    last_plausible = start + (1 + HORIZON) * facts[LENGTH]
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
            push(row, message, known.tracks, messages)
    give_out(STALL, known, out)
    facts[HIGH_WATER] = start
    open_window(start, 0, known, messages, out)


@njit(error_model="numpy")
def _with_piled(times: Ints, known: Known, messages: Waiting) -> Ints:
    """Put the event times of all that waits behind others."""
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
            for child in (messages.left[message], messages.right[message]):
                if child != NONE:
                    heap[open_] = child
                    open_ += 1
    return together


@njit(error_model="numpy")
def _recover(known: Known, messages: Waiting, out: Out) -> None:
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    active = facts[JOINED] - facts[ACTIVE_FROM]
    if active:
        recent = facts[UNMOVED] or active
        times = np.empty(recent, np.int64)
        for k in range(recent):
            times[k] = messages.times[out.joined[facts[JOINED] - 1 - k]]
        anchor = plausible_range(times, length, True)[1]
        if facts[ALL_PILED] and plausible_range(_with_piled(times, known, messages), length, True)[1] != anchor:
            anchor = start + length
        if start <= anchor <= start + length:
            give_out(STALL, known, out)
            open_window(start + length, 1, known, messages, out)
        else:
            _place_anew(anchor, known, messages, out)
    elif facts[ALL_PILED]:
        steps = max(1, windows_to_first(False, known, messages))
        open_window(start + steps * length, steps, known, messages, out)
    _settle(known, messages, out)


@njit(error_model="numpy", inline="always")
def _add(rows: Codes, first: int, stop: int, now: int, known: Known, messages: Waiting, out: Out) -> None:
    facts = known.facts
    facts[LOOKED] = now
    facts[SINCE] = min(facts[SINCE], now)
    if not facts[BEGUN]:
        if first < stop:
            _begin(rows, first, stop, known, messages, out)
            facts[SINCE] = now
        return
    if facts[JOINED] == facts[ACTIVE_FROM] and not facts[ALL_PILED]:
        facts[UNMOVED] = facts[EPOCHS] = 0
        facts[SINCE] = now
    start, length = facts[WINDOW_START], facts[LENGTH]
    high_water, held = facts[HIGH_WATER], facts[JOINED]
    _take(rows, first, stop, known, messages, out)
    closed = stalled = False
    timed_out = facts[TIMEOUT_NS] != NEVER and facts[HIGH_WATER] >= start + facts[TIMEOUT_NS]
    if not facts[WAITING] or facts[ALL_PILED] or timed_out:
        closed = _settle(known, messages, out)
    if not closed:
        if facts[HIGH_WATER] > high_water:
            facts[UNMOVED] = facts[EPOCHS] = 0
        elif first < stop:
            facts[UNMOVED] += facts[JOINED] - held
            stalled = is_stuck(messages.times, first, stop, start, length, facts)
        if stalled or now - facts[SINCE] >= STALLED * length:
            _recover(known, messages, out)
            stalled = True
    if closed or stalled:
        facts[UNMOVED] = facts[EPOCHS] = 0
        facts[SINCE] = now


@njit(error_model="numpy")
def _flush(known: Known, messages: Waiting, out: Out) -> None:
    facts = known.facts
    while facts[JOINED] > facts[ACTIVE_FROM] or facts[ALL_PILED]:
        steps = 1
        if facts[JOINED] > facts[ACTIVE_FROM]:
            give_out(FLUSH, known, out)
        else:
            steps = max(1, windows_to_first(False, known, messages))
        open_window(facts[WINDOW_START] + steps * facts[LENGTH], steps, known, messages, out)
    facts[UNMOVED] = facts[EPOCHS] = 0
    facts[SINCE] = facts[LOOKED]


# Arrow's memory is read-only, and Numba compiles for that only where the signature says so.
_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_ints = types.Array(types.int64, 1, "C")
_tables = types.Array(types.int64, 2, "C")
_rows = types.Array(types.int32, 1, "C")


_SIGNATURE = types.void(
    _codes_in, _times_in, _times_in, _times_in, types.boolean, _ints, _tables, _tables,
    _rows, _rows, _rows, _ints, _ints, _ints, _ints, _ints, _ints,
)  # fmt: skip


def _compiled(fingerprint: int) -> Callable[..., None]:
    # Numba's cache looks for changes in this file alone. What a compiled function closes over is part of its key there,
    # so that a change of the functions and numbers that this file takes from elsewhere is noticed too.
    @njit(_SIGNATURE, cache=True, nogil=True, error_model="numpy")
    def run(
        rows: Codes,
        times: Ints,
        calls: Ints,
        clock: Ints,
        flush: bool,
        facts: Ints,
        tracks: Table,
        rings: Table,
        left: Rows,
        right: Rows,
        waits_for: Rows,
        joined: Ints,
        starts: Ints,
        ends: Ints,
        closed: Ints,
        reasons: Ints,
        until: Ints,
    ) -> None:
        """Run the calls; see `waterclock.batching.rate.columns.RateAwareColumns`.

        Message k is of track ``rows[k]``; call c brings the messages ``calls[c]`` to ``calls[c + 1]``, at ``clock[c]``
        where there is a clock. Those before ``calls[0]`` are from earlier: in the window where ``waits_for`` is NONE,
        else waiting for that track. Afterwards it tells so of all messages that are in no batch.
        """
        known = Known(facts, tracks, rings)
        messages = Waiting(times, left, right, waits_for)
        out = Out(joined, starts, ends, closed, reasons, until)
        for message in range(calls[0]):
            if waits_for[message] == NONE:
                join(message, facts, out)
            else:
                push(waits_for[message], message, tracks, messages)
                facts[ALL_PILED] += 1
        for call in range(len(calls) - 1):
            now = clock[call] if len(clock) else facts[LOOKED]
            _add(rows, calls[call], calls[call + 1], now, known, messages, out)
        if flush:
            _flush(known, messages, out)
        facts[COMPILED_FROM] = fingerprint  # what is closed over must be used

    return run


def _fingerprint() -> int:
    modules = (track_kernel, starts_kernel, stall_kernel, window_kernel)
    values = [value for module in modules for value in vars(module).values()]
    compiled = [value.py_func.__code__ for value in values if hasattr(value, "py_func")]
    numbers = [value for value in values if isinstance(value, int | float)]
    parts: list[Any] = [(code.co_code, code.co_consts, code.co_names) for code in compiled]
    return zlib.crc32(repr((parts, numbers, ABSENT, EPOCH, HORIZON, STALLED, KEPT_DIFFERENCES)).encode())


run = _compiled(_fingerprint())
"""Run the calls of one source; see the inner function."""
