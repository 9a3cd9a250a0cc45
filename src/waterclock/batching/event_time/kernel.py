"""The rule of event-time batching for arrays. Numba compiles this file; it imports only constants from other files."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.event_time.rule import (
    ACCEPTED,
    BY_BOUNDARY,
    BY_CONFLICT,
    BY_TIME,
    DUPLICATE,
    FUTURE,
    ISOLATE,
    LATE,
    REPLACE,
    REPLACED,
    SPLIT,
    UNDECIDED,
)
from waterclock.batching.kernels import numba_for
from waterclock.time import MAX_NS, MIN_NS

njit, types = numba_for(__name__)

Times = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]  # unsigned, because Numba then leaves out the test for negative indices
Bytes = npt.NDArray[np.uint8]

_FEW = 48  # up to this many are sorted fastest by insertion


class _Rule(NamedTuple):
    window: int
    max_delay: int
    on_conflict: int
    silence: int


class _EventTimeOutput(NamedTuple):
    starts: Times
    ends: Times
    cuts: Bytes
    verdicts: Bytes


class _LastSeen(NamedTuple):
    """By stream: the numbers of its last window and its last event time, and the row kept there."""

    window: Times
    instant: Times
    kept: Codes


# Arrow's memory is read-only, and Numba compiles for that only if the signature says so.
_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_codes_out = types.Array(types.uint32, 1, "C")
_times_out = types.Array(types.int64, 1, "C")
_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.Array(types.uint8, 1, "C")


# For code that runs once per window or event time: a call counts references of its arrays, which costs more than the
# work.
_inlined = njit(inline="always")


@njit
def _plus(time: int, length: int) -> int:
    return time + length if time <= MAX_NS - length else MAX_NS


@njit
def _minus(time: int, length: int) -> int:
    return time - length if time >= MIN_NS + length else MIN_NS


@njit
def _mark_late_and_future(
    event_times: Times, receive_times: Times, max_delay: int, max_lead: int, now: int, verdicts: Bytes
) -> None:
    # No branches, so that the loop is vectorised.
    for row in range(event_times.size):
        received = receive_times[row]
        event_time = event_times[row]
        verdict = np.uint8(ACCEPTED)
        if event_time > _plus(received, max_lead):
            verdict = np.uint8(FUTURE)
        if event_time < _minus(received, max_delay):
            verdict = np.uint8(LATE)
        if received > now:
            verdict = np.uint8(UNDECIDED)
        verdicts[row] = verdict


@njit
def _gather(sources: Codes, event_times: Times, verdicts: Bytes, bounds: Times, times: Times, rows: Codes) -> None:
    """Group the accepted rows by source, in row order; source s is then at ``bounds[s]`` to ``bounds[s + 1]``."""
    for row in range(sources.size):
        if verdicts[row] == ACCEPTED:
            bounds[sources[row] + np.uint32(1)] += 1
    for source in range(1, bounds.size):
        bounds[source] += bounds[source - 1]
    cursor = bounds[:-1].copy()
    for row in range(sources.size):
        if verdicts[row] == ACCEPTED:
            place = cursor[sources[row]]
            cursor[sources[row]] = place + 1
            times[place] = event_times[row]
            rows[place] = row


@njit
def _is_sorted(times: Times, first: int, stop: int) -> bool:
    for k in range(first + 1, stop):  # noqa: SIM110  # Numba compiles no generators
        if times[k - 1] > times[k]:
            return False
    return True


@njit
def _sort(
    times: Times, rows: Codes, first: int, stop: int, spare_times: Times, spare_rows: Codes, bucket_ends: Codes
) -> None:
    """Sort places ``first`` to ``stop`` by time, stably: into buckets of equal width, then within them.

    Messages arrive nearly in order and evenly, so a bucket holds few, and memory accesses are local. Buckets that hold
    many, such as after a long silence of a source, are merge-sorted.
    """
    low = times[first]
    high = times[first]
    for k in range(first, stop):
        low = min(low, times[k])
        high = max(high, times[k])
    base = np.uint64(low)
    span = np.uint64(high) - base
    most = np.uint64((stop - first) // 2)
    shift = np.uint64(0)
    while span >> shift > most:
        shift += np.uint64(1)
    buckets = np.int64(span >> shift) + 1
    bucket_ends[: buckets + 1] = 0
    for k in range(first, stop):
        bucket_ends[((np.uint64(times[k]) - base) >> shift) + np.uint64(1)] += 1
    bucket_ends[0] = first
    for bucket in range(1, buckets + 1):
        bucket_ends[bucket] += bucket_ends[bucket - 1]
    for k in range(first, stop):
        time = times[k]
        bucket = (np.uint64(time) - base) >> shift
        place = bucket_ends[bucket]
        bucket_ends[bucket] = place + 1
        spare_times[place] = time
        spare_rows[place] = rows[k]
    begin = first
    for bucket in range(buckets):
        end = bucket_ends[bucket]
        if end - begin > _FEW:
            _merge_sort(spare_times, spare_rows, begin, end, times, rows)
        begin = end
    _insert(spare_times, spare_rows, first, stop, times, rows)


@njit
def _merge_sort(times: Times, rows: Codes, first: int, stop: int, merged_times: Times, merged_rows: Codes) -> None:
    """Sort places ``first`` to ``stop`` by time, stably: to compile NumPy's stable sort takes most of the time."""
    width = 1
    while width < stop - first:
        for begin in range(first, stop, 2 * width):
            middle, end = min(begin + width, stop), min(begin + 2 * width, stop)
            left, right = begin, middle
            for place in range(begin, end):
                if right == end or (left < middle and times[left] <= times[right]):
                    chosen = left
                    left += 1
                else:
                    chosen = right
                    right += 1
                merged_times[place] = times[chosen]
                merged_rows[place] = rows[chosen]
        for place in range(first, stop):
            times[place] = merged_times[place]
            rows[place] = merged_rows[place]
        width *= 2


@njit
def _insert(from_times: Times, from_rows: Codes, first: int, stop: int, times: Times, rows: Codes) -> None:
    for k in range(first, stop):
        time = from_times[k]
        row = from_rows[k]
        place = k
        while place > first and times[place - 1] > time:
            times[place] = times[place - 1]
            rows[place] = rows[place - 1]
            place -= 1
        times[place] = time
        rows[place] = row


@_inlined
def _mark_duplicates(
    rows: Codes,
    first: int,
    stop: int,
    streams: Codes,
    receive_times: Times,
    last_instant: Times,
    kept: Codes,
    verdicts: Bytes,
) -> None:
    """Among the rows of one event time, keep the first received one of each stream; among equals, the first row."""
    for k in range(first, stop):
        row = rows[k]
        stream = streams[row]
        if verdicts[row] != ACCEPTED:
            continue
        if last_instant[stream] != first + 1:
            last_instant[stream] = first + 1
            kept[stream] = row
        elif receive_times[row] < receive_times[kept[stream]]:
            verdicts[kept[stream]] = DUPLICATE
            kept[stream] = row
        else:
            verdicts[row] = DUPLICATE


@_inlined
def _enter(rows: Codes, first: int, stop: int, streams: Codes, number: int, last_window: Times) -> bool:
    """Put the rows of one event time into a window, or return that the window already has one of their streams."""
    for k in range(first, stop):
        if last_window[streams[rows[k]]] == number:
            return False
    for k in range(first, stop):
        last_window[streams[rows[k]]] = number
    return True


# Not inlined: its loop would slow down sources without boundaries.
@njit
def _holds_boundary(rows: Codes, first: int, stop: int, streams: Codes, boundaries: Bytes) -> bool:
    """Return whether the streams of some rows cut windows."""
    for k in range(first, stop):  # noqa: SIM110  # Numba compiles no generators
        if boundaries[streams[rows[k]]]:
            return True
    return False


@_inlined
def _keep_newest(
    rows: Codes, first: int, stop: int, streams: Codes, number: int, last_window: Times, verdicts: Bytes
) -> None:
    for k in range(stop - 1, first - 1, -1):
        row = rows[k]
        if verdicts[row] == ACCEPTED:
            if last_window[streams[row]] == number:
                verdicts[row] = REPLACED
            last_window[streams[row]] = number


@njit
def _cut_source(  # noqa: C901  # a call for each event time would cost more than its work
    times: Times,
    rows: Codes,
    first: int,
    stop: int,
    streams: Codes,
    receive_times: Times,
    boundaries: Bytes,
    rule: _Rule,
    now: int,
    seen: _LastSeen,
    out: _EventTimeOutput,
) -> None:
    """Cut the sorted rows of one source into windows. Window numbers are row places, so that sources share none."""
    # Unpacked once: reading an array from a tuple counts references, which would cost more than the work itself.
    starts, ends, cuts, verdicts = out
    window, max_delay, on_conflict, silence = rule
    splits = on_conflict in (SPLIT, ISOLATE)
    bounded = boundaries.size > 0
    last_window, last_instant, kept = seen
    k = unmarked = first
    isolated = False
    while k < stop:
        begin = k
        start = times[k]
        longest = start if isolated else _plus(start, window)
        end = min(longest, _plus(start, silence))
        cut = BY_CONFLICT if isolated else BY_TIME
        isolated = False
        while k < stop and times[k] <= end:
            after = k + 1
            while after < stop and times[after] == times[k]:
                after += 1
            if after > k + 1 and k >= unmarked:  # a conflicting event time is visited again as the next window's first
                unmarked = after
                _mark_duplicates(rows, k, after, streams, receive_times, last_instant, kept, verdicts)
            if bounded and k > begin and _holds_boundary(rows, k, after, streams, boundaries):
                end = times[k]
                cut = BY_BOUNDARY
                break
            if splits and not _enter(rows, k, after, streams, begin + 1, last_window):
                end = times[k]
                cut = BY_CONFLICT
                isolated = on_conflict == ISOLATE
                break
            end = min(longest, _plus(times[k], silence))
            k = after
        open_still = _plus(end, max_delay) > now
        if on_conflict == REPLACE and not open_still:
            _keep_newest(rows, begin, k, streams, begin + 1, last_window, verdicts)
        for place in range(begin, k):
            row = rows[place]
            starts[row] = start
            if verdicts[row] == ACCEPTED:
                ends[row] = end
                if open_still:
                    verdicts[row] = UNDECIDED
                else:
                    cuts[row] = cut


_spare_out = (_times_out, _codes_out, _times_out, _codes_out, _codes_out)


@njit(
    types.int64(
        *[_codes_in, _codes_in, _times_in, _times_in, _bytes_in],
        *[types.int64] * 6,
        types.boolean,
        types.int64,
        _times_in,
        *[_times_out, _times_out, _bytes_out, _bytes_out],
        *_spare_out,
    ),
    cache=True,
    nogil=True,
)
def assign(
    sources: Codes,
    streams: Codes,
    event_times: Times,
    receive_times: Times,
    boundaries: Bytes,
    stream_count: int,
    window: int,
    max_delay: int,
    max_lead: int,
    on_conflict: int,
    silence: int,
    judges: bool,
    now: int,
    nows: Times,
    starts: Times,
    ends: Times,
    cuts: Bytes,
    verdicts: Bytes,
    times: Times,
    rows: Codes,
    spare_times: Times,
    spare_rows: Codes,
    bucket_ends: Codes,
) -> int:
    """Find the windows of rows; see `waterclock.batching.event_time.columns.assign_arrays` and `assign_judged`.

    If ``judges``, first judges every row ``now``; otherwise ``verdicts`` says which rows are accepted. ``nows`` are the
    readings of the sources' receive clocks. Writes ``starts``, ``ends`` and ``cuts`` of the accepted rows, and into
    ``rows`` the ordered rows, whose number it returns. The last five are working memory for every row (``bucket_ends``
    for two more): NumPy allocates it in huge pages. Numba does not, and touching so many small pages would take as long
    as the sorting.
    """
    if judges:
        _mark_late_and_future(event_times, receive_times, max_delay, max_lead, now, verdicts)
    rule, out = _Rule(window, max_delay, on_conflict, silence), _EventTimeOutput(starts, ends, cuts, verdicts)
    seen = _LastSeen(
        np.zeros(stream_count, np.int64), np.zeros(stream_count, np.int64), np.zeros(stream_count, np.uint32)
    )
    bounds = np.zeros(nows.size + 1, np.int64)
    _gather(sources, event_times, verdicts, bounds, times, rows)
    for source in range(nows.size):
        first, stop = bounds[source], bounds[source + 1]
        if not _is_sorted(times, first, stop):
            _sort(times, rows, first, stop, spare_times, spare_rows, bucket_ends)
        _cut_source(times, rows, first, stop, streams, receive_times, boundaries, rule, nows[source], seen, out)
    return bounds[nows.size]


@njit(types.void(_codes_in, _times_in, _times_out, _times_out), cache=True, nogil=True)
def read_clocks(sources: Codes, receive_times: Times, clocks: Times, readings: Times) -> None:
    """Move the receive clock of each source with its messages, and note its value at each."""
    for row in range(sources.size):
        source = sources[row]
        clocks[source] = max(clocks[source], receive_times[row])
        readings[row] = clocks[source]


@njit
def _after(times: Times, place: int, stop: int) -> int:
    """Find the first place with a later time than this place, by halving."""
    low, high = place, stop
    while low < high:
        middle = (low + high) // 2
        if times[middle] > times[place]:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def _leads(
    times: Times,
    streams: Codes,
    boundaries: Bytes,
    first: int,
    stop: int,
    rule: _Rule,
    last_place: Times,
    leads: Times,
) -> None:
    """For a window opened at each place, find the place of the next window; ``stop`` without one.

    Places hold one source's messages in order of time. Messages of one time share a window, which the first of their
    places represents.
    """
    window, _, on_conflict, silence = rule
    splits = on_conflict in (SPLIT, ISOLATE)
    cut = far = boundary = k = stop
    after = stop
    while k > first:
        after = k
        k -= 1
        while k > first and times[k - 1] == times[k]:
            k -= 1
        for place in range(k, after):
            known = last_place[streams[place]]
            if first <= known < cut:
                cut = known
        for place in range(k, after):
            last_place[streams[place]] = k
        while far > after and times[far - 1] > _plus(times[k], window):
            far -= 1
        far = after if after < stop and times[after] > _plus(times[k], silence) else far
        leads[k] = far
        if cut < far and splits:
            leads[k] = cut
            if on_conflict == ISOLATE:
                leads[k] = _after(times, cut, stop)
        leads[k] = min(leads[k], boundary)
        if boundaries[k:after].any():
            boundary = k


@njit
def _synchronises(
    times: Times,
    leads: Times,
    boundaries: Bytes,
    first: int,
    stop: int,
    rule: _Rule,
    begin: int,
    since: int,
    possible: Bytes,
    run_known: bool,
) -> bool:
    """Return whether the windows from ``since`` on, and their runs, do not depend on messages before ``begin``."""
    _, _, on_conflict, silence = rule
    possible[first:stop] = 0
    possible[first] = 1
    furthest = first
    if times[first] <= _plus(begin, silence):
        # A window that opened earlier may hold the first messages. The next window then opens at one of these messages,
        # or at the place to which a window at the first message leads: an earlier window never leads further than a
        # later one.
        furthest = leads[first]
        possible[first:furthest] = 1
    k = first
    synchronised = False
    while k < stop:
        after = k + 1
        while after < stop and times[after] == times[k]:
            after += 1
        run_known = run_known or bool(boundaries[k:after].any())
        if possible[k]:
            synchronised = synchronised or furthest <= k
            if times[k] >= since:
                return synchronised and run_known
            # Its isolated batch may begin within the range although the next window opens where all others do.
            if on_conflict == ISOLATE and not synchronised and leads[k] > first and times[leads[k] - 1] >= since:
                return False
            furthest = max(furthest, leads[k])
            if leads[k] < stop:
                possible[leads[k]] = 1
        k = after
    return True


@njit(
    types.void(_codes_in, _times_in, _times_in, _bytes_in, *[types.int64] * 7, _bytes_out),
    cache=True,
    nogil=True,
)
def synchronise(
    streams: Codes,
    times: Times,
    places: Times,
    boundaries: Bytes,
    stream_count: int,
    window: int,
    on_conflict: int,
    silence: int,
    begin: int,
    since: int,
    has_runs: int,
    synchronised: Bytes,
) -> None:
    """Determine for each source whether its windows synchronise; see `waterclock.batching.event_time.replay`.

    Source s has the places ``places[s]`` to ``places[s + 1]``, in order of time. ``boundaries`` are by place.
    """
    rule = _Rule(window, 0, on_conflict, silence)
    leads = np.zeros(times.size, np.int64)
    possible = np.zeros(times.size, np.uint8)
    last_place = np.full(stream_count, -1)
    for source in range(places.size - 1):
        first, stop = places[source], places[source + 1]
        if first < stop:
            _leads(times, streams, boundaries, first, stop, rule, last_place, leads)
            synchronised[source] = _synchronises(
                times, leads, boundaries, first, stop, rule, begin, since, possible, has_runs == 0
            )
        else:
            synchronised[source] = True
