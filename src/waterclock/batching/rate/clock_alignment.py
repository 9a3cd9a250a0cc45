"""Estimates, message by message, how far a stream's clock differs from the receive clock, to align the stream's times.

The receive time minus the event time of a message is the offset of the clocks plus the message's transit time. A delay
only increases this difference, so the smallest differences show the offset. Drawn over time, the offset is a line below
all differences, as in Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements"
(1999). The line's slope is the drift.

A difference below the line by more than `TOLERANCE` shows that the clock was set forward. A difference far above the
line usually means that the message is late. But if the message's event time is also earlier than the event times of
earlier messages, the clock was set back. If a clock was set, the line and its points are shifted by the same amount,
and the known drift is kept.

The functions take a row of integers, either a NumPy row or a list, so that `RateAwareBatcher`, the batching of columns
and Spark share this code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from waterclock.batching.kernels import numba_for

njit, types = numba_for(__name__)

Ints = npt.NDArray[np.int64]

_times = types.Array(types.int64, 1, "C", readonly=True)

TOLERANCE = 100_000_000
"""How far (ns) a message may be off the line without a sign of a clock that was set. Network jitter is less."""

PART = 1_000_000_000
"""The fastest message of each part of this length (ns, receive time) is a point."""

POINTS = 16
"""Points kept. More follow a change of drift too slowly, fewer follow jitter."""

LEAST_POINTS = 4
"""Below this number of points, the drift is not estimated."""

SETTLING = 2
"""In so many parts after the start and after a clock was set, each faster message lowers the line."""

CONFIRMED = 3
"""In a stream known for disorder, so many messages in a row must agree that its clock was set back."""

WARY = 16
"""For so many parts a stream is known for disorder, after its clock seemed to be set back and was not."""

PERSISTENT = 8
"""A delay of all messages in this many parts in a row counts as a clock that was set back: no one can tell these apart.
"""

FASTEST_DRIFT = 50_000_000
"""The largest drift, ns per second. A clock that is faster or slower is broken."""

FARTHEST = 2**62
"""Only times nearer to the epoch than this (ns) are aligned, if they are half as near to each other: so differences and
sums fit 64 bits. It is 146 years.
"""

MOST_STREAMS = 1_000
"""Maximum number of streams of a source that are aligned, the first to come: senders choose the names of streams, and
memory is bounded. The times of further streams are used as they are."""

# The values of BEGUN.
UNKNOWN, MET, KNOWN = range(3)

# The columns of a row; the points follow, two columns each: the event time, and the offset there.
(
    BEGUN,
    ORIGIN,  # event time of a point on the line, ns
    OFFSET,  # the offset at this point, ns
    DRIFT,  # ns per second
    NEWEST,  # event time, ns
    PART_ENDS,  # receive time, ns
    LOW_AT,  # event time of the fastest message in this part, ns
    LOW,  # its offset, ns
    KEPT,
    SETTLES,  # parts in which the line still settles
    RETURN,  # by how much (ns) the clock would be set to undo its last change; 0 if that is long ago
    SUSPECT,  # by how much the clock may have been set, ns
    SUSPECTS,  # messages that agree on it
    WARY_FOR,  # parts
    HIGH_PARTS,  # consecutive parts in which all messages were above the line by more than the tolerance
    LEAST_HIGH,  # least distance above the line in these, ns
    FIRST_POINT,
) = range(17)
COLUMNS = FIRST_POINT + 2 * POINTS


@njit(error_model="numpy")
def _expected(row: Any, event_time: int) -> int:
    """Return the offset of the line at an event time, ns."""
    return row[OFFSET] + int(row[DRIFT] * 1e-9 * (event_time - row[ORIGIN]))


@njit(error_model="numpy")
def _set_clock(row: Any, off: int) -> None:
    """Move the line by ``off`` (ns) at the time of the current message, as if the clock had always been so."""
    by = int(off / (1 + row[DRIFT] * 1e-9))
    row[ORIGIN] -= by
    row[OFFSET] += by
    row[NEWEST] -= by
    row[LOW_AT] -= by
    row[LOW] += by
    for point in range(FIRST_POINT, FIRST_POINT + 2 * row[KEPT], 2):
        row[point] -= by
        row[point + 1] += by
    row[SUSPECTS] = 0
    row[HIGH_PARTS] = 0


@njit(error_model="numpy")
def _fit(row: Any) -> None:
    """Draw the line that lies under all points and is highest two thirds of the way along them."""
    first, stop = FIRST_POINT, FIRST_POINT + 2 * row[KEPT]
    if row[KEPT] < LEAST_POINTS:
        row[DRIFT] = 0
        lowest = first
        for point in range(first, stop, 2):
            if row[point + 1] < row[lowest + 1]:
                lowest = point
        row[ORIGIN] = row[lowest]
        row[OFFSET] = row[lowest + 1]
        return
    middle = row[first + 2 * (2 * row[KEPT] // 3)] - 1
    lowest_there = 0.0
    found = False
    for left in range(first, stop, 2):
        if row[left] > middle:
            continue
        for right in range(first, stop, 2):
            if row[right] <= middle:
                continue
            drift = float(row[right + 1] - row[left + 1]) / float(row[right] - row[left])
            there = row[right + 1] - drift * (row[right] - middle)
            if not found or there < lowest_there:
                found = True
                lowest_there = there
                row[ORIGIN] = row[right]
                row[OFFSET] = row[right + 1]
                row[DRIFT] = int(min(max(drift * 1e9, -FASTEST_DRIFT), FASTEST_DRIFT))


@njit(error_model="numpy")
def _end_part(row: Any) -> None:
    """Keep the fastest message of a part as a point, and draw the line again."""
    off = row[LOW] - _expected(row, row[LOW_AT])
    row[SETTLES] = max(row[SETTLES] - 1, 0)
    row[WARY_FOR] = max(row[WARY_FOR] - 1, 0)
    if row[SETTLES] == 0:
        row[RETURN] = 0
    if off > TOLERANCE:
        row[LEAST_HIGH] = min(row[LEAST_HIGH], off) if row[HIGH_PARTS] else off
        row[HIGH_PARTS] += 1
        if row[HIGH_PARTS] == PERSISTENT:
            _set_clock(row, row[LEAST_HIGH])
        return
    row[HIGH_PARTS] = 0
    if row[KEPT] == POINTS:
        for place in range(FIRST_POINT, COLUMNS - 2):
            row[place] = row[place + 2]
        row[KEPT] -= 1
    row[FIRST_POINT + 2 * row[KEPT]] = row[LOW_AT]
    row[FIRST_POINT + 2 * row[KEPT] + 1] = row[LOW]
    row[KEPT] += 1
    _fit(row)


@njit(error_model="numpy")
def _was_set_back(row: Any, event_time: int, off: int) -> bool:
    """Return whether a message above the line shows a clock that was set back, rather than a delay."""
    if off <= TOLERANCE:
        row[SUSPECTS] = 0
        return False
    if row[RETURN] > 0 and abs(off - row[RETURN]) <= TOLERANCE:
        return True
    if event_time >= row[NEWEST]:
        return False
    if row[WARY_FOR] == 0:
        return True
    agrees = row[SUSPECTS] > 0 and abs(off - row[SUSPECT]) <= TOLERANCE
    row[SUSPECTS] = row[SUSPECTS] + 1 if agrees else 1
    row[SUSPECT] = off
    return row[SUSPECTS] == CONFIRMED


@njit(error_model="numpy")
def may_be_aligned(event_time: int, receive_time: int) -> bool:
    """Return whether differences and sums of the times fit 64 bits."""
    if not (-FARTHEST < event_time < FARTHEST and -FARTHEST < receive_time < FARTHEST):
        return False
    return abs(receive_time - event_time) < FARTHEST // 2


@njit(error_model="numpy")
def meet(row: Any, event_time: int, receive_time: int) -> None:
    """Look at a message of a call before the offsets of the call are asked for.

    The first call of a stream may be a backlog that was received at once. Its fastest message then shows the offset.
    """
    if row[BEGUN] == KNOWN or not may_be_aligned(event_time, receive_time):
        return
    delay = receive_time - event_time
    if row[BEGUN] == MET and delay >= row[OFFSET]:
        return
    if row[BEGUN] == UNKNOWN:
        row[BEGUN] = MET
        row[NEWEST] = -FARTHEST
        row[SETTLES] = SETTLING
        row[PART_ENDS] = receive_time - receive_time % PART + PART
    row[ORIGIN] = row[LOW_AT] = event_time
    row[OFFSET] = row[LOW] = delay


@njit(error_model="numpy")
def offset_of(row: Any, event_time: int, receive_time: int) -> int:
    """Return the offset (ns) to add to a message's event time, and learn from the message.

    Parameters
    ----------
    row
        Of the message's stream, which `meet` has seen; zeros before its first message, or if it is not aligned.
    event_time, receive_time
        ns.
    """
    if row[BEGUN] == UNKNOWN or not may_be_aligned(event_time, receive_time):
        return 0
    row[BEGUN] = KNOWN
    delay = receive_time - event_time
    starts = receive_time >= row[PART_ENDS]
    if starts:
        _end_part(row)
        row[PART_ENDS] = receive_time - receive_time % PART + PART
    off = delay - _expected(row, event_time)
    if off < -TOLERANCE or _was_set_back(row, event_time, off):
        returns = row[RETURN] != 0 and abs(off - row[RETURN]) <= TOLERANCE
        _set_clock(row, off)
        row[RETURN] = 0 if returns else -off
        if returns:
            row[WARY_FOR] = WARY
        row[SETTLES] = SETTLING
        off = 0
    elif off < 0:
        if row[SETTLES]:
            _set_clock(row, off)
        off = 0
    row[NEWEST] = max(row[NEWEST], event_time)
    if starts or delay - _expected(row, event_time) < row[LOW] - _expected(row, row[LOW_AT]):
        row[LOW_AT] = event_time
        row[LOW] = delay
    return delay - off


@njit(
    types.void(types.Array(types.int64, 2, "C"), *[_times] * 5, *[types.Array(types.int64, 1, "C")] * 2),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def offsets_of(
    rows: Ints,
    source_of: Ints,
    calls: Ints,
    row_of: Ints,
    event_times: Ints,
    receive_times: Ints,
    aligned: Ints,
    offsets: Ints,
) -> None:
    """Write the offset of each message, in order of arrival; message k is of the stream of row ``row_of[k]``.

    Row r is of the source ``source_of[r]``, of which ``aligned`` counts the streams. Call c brought the messages from
    ``calls[c]`` to before ``calls[c + 1]``.
    """
    for row in range(len(rows)):
        aligned[source_of[row]] += rows[row, BEGUN] != UNKNOWN
    for call in range(len(calls) - 1):
        for message in range(calls[call], calls[call + 1]):
            row, source = rows[row_of[message]], source_of[row_of[message]]
            if row[BEGUN] != UNKNOWN or aligned[source] < MOST_STREAMS:
                begun = row[BEGUN] != UNKNOWN
                meet(row, event_times[message], receive_times[message])
                aligned[source] += (row[BEGUN] != UNKNOWN) != begun
        for message in range(calls[call], calls[call + 1]):
            row = rows[row_of[message]]
            offsets[message] = offset_of(row, event_times[message], receive_times[message])
