"""The rules of batching by rate, for arrays. Numba compiles these files.

Each function is named after a function in `by_message` or in a file of `rate`, and follows the same rule. The files
import one another relatively, because `waterclock.batching.kernels` loads them both interpreted and compiled.
"""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.rule import STALLED

from .arrays import Codes, Flags, Ints, KernelOutput, Known, Links, Table, WaitingMessages, inlined, njit, types
from .piles import push
from .placing import begin_source, take
from .recovering import gives_way, recover
from .stalls import is_stuck, note_move
from .windows import close_complete, cut, give_out, has_timed_out, is_rivalled, join, skip, windows_to_first


@inlined
def _add(  # noqa: C901  # a call for each message would cost more than its work
    first: int, stop: int, now: int, known: Known, messages: WaitingMessages, out: KernelOutput
) -> None:
    facts = known.facts
    facts[at.LOOKED] = now
    facts[at.SINCE] = min(facts[at.SINCE], now)
    if not facts[at.BEGUN]:
        if first < stop:
            begin_source(first, stop, known, messages, out)
            facts[at.SINCE] = now
        return
    if facts[at.JOINED] == facts[at.ACTIVE_FROM] and not facts[at.ALL_PILED]:
        note_move(facts[at.DOUBTFUL] == 1, facts)
        facts[at.SINCE] = now
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    high_water, held, cut_at = facts[at.HIGH_WATER], facts[at.JOINED], facts[at.CUT_AT]
    take(first, stop, known, messages, out)
    if facts[at.CUT_AT] < cut_at:
        cut(known, messages, out)
        held = min(held, facts[at.JOINED])
    rivalled = is_rivalled(facts)
    closed, stalled = False, rivalled and gives_way(first, stop, high_water, held, known, messages, out)
    if not stalled and (not facts[at.WAITING] or facts[at.ALL_PILED] or has_timed_out(start, facts)):
        closed = close_complete(known, messages, out)
    if not closed and not stalled:
        if facts[at.HIGH_WATER] > high_water:
            note_move(rivalled, facts)
        elif first < stop and not rivalled:
            facts[at.UNMOVED] += facts[at.JOINED] - held
            stalled = is_stuck(messages.times, first, stop, high_water, start, length, facts)
        if stalled or now - facts[at.SINCE] >= STALLED * length:
            recover(known, messages, out)
    if closed:
        note_move(rivalled, facts)
        facts[at.SINCE] = now


@inlined
def _flush(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    facts = known.facts
    while facts[at.JOINED] > facts[at.ACTIVE_FROM] or facts[at.ALL_PILED]:
        steps = 1
        if facts[at.JOINED] > facts[at.ACTIVE_FROM]:
            give_out(at.FLUSH, known, messages, out)
        else:
            steps = max(1, windows_to_first(at.FALSE, known, messages))
        skip(steps, known, messages, out)
    facts[at.UNMOVED] = facts[at.ERAS] = 0
    facts[at.SINCE] = facts[at.LOOKED]


# Arrow's memory is read-only, and Numba compiles for that only if the signature says so.
_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_flags_in = types.Array(types.boolean, 1, "C", readonly=True)
_ints = types.Array(types.int64, 1, "C")
_tables = types.Array(types.int64, 2, "C")
_links = types.Array(types.int32, 2, "C")


@inlined
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
    facts[at.JOINED] = facts[at.ACTIVE_FROM] = facts[at.BATCHES] = facts[at.ALL_PILED] = 0
    for row in range(len(known.tracks)):
        known.tracks[row, at.ROOT] = at.NONE
        known.tracks[row, at.PILED] = 0
    for message in range(calls[0]):
        if messages.links[message, at.WAITS_FOR] == at.NONE:
            join(message, facts, out)
        else:
            push(np.uint32(messages.links[message, at.WAITS_FOR]), message, known.tracks, messages)
            facts[at.ALL_PILED] += 1
    for call in range(len(calls) - 1):
        now = clock[first_call + call] if len(clock) else facts[at.LOOKED]
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
            for k in range(known[at.BATCHES]):
                for column in range(at.BATCH_COLUMNS):
                    batches[count + k, column] = batches[place + k, column]
                batches[count + k, at.UNTIL] += given_out
            count += known[at.BATCHES]
            for k in range(known[at.ACTIVE_FROM]):
                given[given_out + k] = first + joined[place + k]
            given_out += known[at.ACTIVE_FROM]
            for k in range(known[at.ACTIVE_FROM], known[at.JOINED]):
                kept[keeps] = first + joined[place + k]
                keeps += 1
            for message in range(first, stop):
                if links[message, at.WAITS_FOR] != at.NONE:
                    kept[keeps] = message
                    keeps += 1
        else:
            for message in range(first, stop):
                kept[keeps] = message
                keeps += 1
        batch_bounds[source + 1] = count
    return keeps
