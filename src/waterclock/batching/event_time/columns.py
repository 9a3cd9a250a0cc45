"""Batches many messages at once by event time, as columns, with the same rule as `EventTimeBatcher`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.rule import (
    ACCEPTED,
    CONFLICTS,
    FUTURE,
    LATE,
    REJECTIONS,
    UNDECIDED,
    EventTimeRule,
    OnConflict,
)
from waterclock.batching.event_time.runs import RunColumns, boundary_flags, runs_of
from waterclock.batching.kernels import Kernel
from waterclock.batching.message_columns import numbered_texts, refuse_added, times_of, with_nulls
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, MIN_NS, Duration, Time, to_time

KERNEL = Kernel("waterclock.batching.event_time.kernel")

_ADDED, _RUN = ("batch_start", "batch_end", "rejected"), "batch_run"
_MOST_ROWS = 2**31


class Assignment(NamedTuple):
    """The outcome of each row.

    Attributes
    ----------
    starts, ends
        Its batch's window, int64 ns; 0 if the row is in no batch. Duplicates and replaced rows have the start of the
        window into which they fell. If `assign_judged` finds the window still open, its start and the end according to
        the messages so far.
    cuts
        Why that window ended: uint8, ``BY_TIME``, ``BY_CONFLICT`` or ``BY_BOUNDARY``.
    verdicts
        uint8, the numbers of `waterclock.batching.event_time.rule`: ``ACCEPTED``, a key of ``REJECTIONS``, or
        ``UNDECIDED`` at ``now``.
    order
        The rows that are neither late nor future nor received after ``now``, source by source in order of event time,
        equal times in their given order; uint32.
    runs
        The run of each row in a window; None without boundaries.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.uint8]
    verdicts: npt.NDArray[np.uint8]
    order: npt.NDArray[np.uint32]
    runs: RunColumns | None = None


def assign_batches(
    table: pa.Table,
    *,
    window: Duration,
    max_delay: Duration,
    max_lead: Duration = 0,
    on_conflict: OnConflict | None = None,
    gap: Duration | None = None,
    boundaries: Iterable[str] | None = None,
    now: Time | None = None,
) -> pa.Table:
    """Find the batch of every message of a table, for all its sources.

    The result equals that of an `EventTimeBatcher` of each source for the same messages in order of receive time. It
    depends on the set of rows. Their order only decides which of equal rows (in source, stream, event time and receive
    time) is the duplicate.

    Parameters
    ----------
    table
        With columns ``source`` and ``stream`` (text, or dictionary of text, which is faster) and ``event_time`` and
        ``receive_time`` (whole numbers of ns, or timestamps of any unit with a time zone), none with nulls. Other
        columns are kept. If the table is empty, columns may be of type null.
    window, max_delay, max_lead, on_conflict, gap, boundaries
        As of `EventTimeBatcher`.
    now
        A reading of the receive clock, as for `EventTimeBatcher.advance`. Messages received after it, and those of
        windows with ``batch_end`` + max_delay after it, are undecided. Default: all are decided.

    Returns
    -------
    pyarrow.Table
        The rows in their order, with ``batch_start`` and ``batch_end`` (int64 ns; null if the message is in no batch,
        or not yet) and ``rejected`` (dictionary of text: late, future, duplicate or replaced; null if the message is
        not rejected, or not yet). With ``boundaries`` also ``batch_run`` (int64 ns, as ``Batch.run``).

    Raises
    ------
    SchemaError
        For a missing column, a column of another type, such as times that are ambiguous (floats, dates, timestamps
        without a time zone), or a column with the name of an added column.
    InvalidArgumentError
        For a column with nulls, a time that does not fit int64 ns, and an invalid option.

    Notes
    -----
    Source: *Message Batching* (thin-edge.io), use cases UC1 to UC5. Wheels contain the rule compiled. Without the
    compiled rule, the first 50,000 rows of a process run interpreted. For more, Numba compiles the rule, some 15 s once
    per installation. The result is kept next to the package or, if that is read-only, in the user's cache folder or
    that of ``NUMBA_CACHE_DIR``.
    """
    rule = EventTimeRule.checked(window, max_delay, max_lead, on_conflict, gap, boundaries)
    clock = None if now is None else to_time(now, "now")
    refuse_added(table, (*_ADDED, _RUN) if rule.boundaries else _ADDED)
    streams, stream_names = numbered_texts(table, "stream")
    found = assign_arrays(
        numbered_texts(table, "source")[0],
        streams,
        times_of(table, "event_time"),
        times_of(table, "receive_time"),
        rule,
        stream_names=stream_names,
        now=clock,
    )
    accepted = found.verdicts == ACCEPTED
    rejected = ~accepted & (found.verdicts != UNDECIDED)
    reasons = with_nulls(pa.int8(), (found.verdicts - min(REJECTIONS)).view(np.int8), rejected)
    columns = (
        with_nulls(pa.int64(), found.starts, accepted),
        with_nulls(pa.int64(), found.ends, accepted),
        pa.DictionaryArray.from_arrays(reasons, pa.array(list(REJECTIONS.values())), safe=False),
    )
    for name, column in zip(_ADDED, columns, strict=True):
        table = table.append_column(name, column)
    if found.runs is not None:
        known = accepted & found.runs.known
        table = table.append_column(_RUN, with_nulls(pa.int64(), found.runs.begins, known))
    return table


def assign_arrays(
    sources: npt.NDArray[Any],
    streams: npt.NDArray[Any],
    event_times: npt.NDArray[Any],
    receive_times: npt.NDArray[Any],
    rule: EventTimeRule,
    *,
    stream_names: pa.Array | None = None,
    now: int | None = None,
) -> Assignment:
    """Find the window of every row; the base of `assign_batches` and of the Spark pipeline.

    If a source's receive times are out of order, pass their running maximum: a batcher that reads the messages one by
    one uses it, too.

    Parameters
    ----------
    sources, streams
        int32 numbers from 0 that represent the sources and the streams; all 0 for one source.
    event_times, receive_times
        int64 ns.
    rule
        The checked options.
    stream_names
        The streams by number, for a rule with boundaries.
    now
        See `assign_batches`.

    Raises
    ------
    InvalidArgumentError
        For arrays of different lengths, numbers below 0, and 2**31 rows or more.
    TypeError
        For arrays that cannot become the types above without loss.
    UnavailableError
        If no folder for Numba's compiled code is writable.
    """
    count = _checked_length(sources, streams, event_times, receive_times)
    verdicts = np.empty(count, np.uint8)
    found, working = _memory(count)
    boundaries = boundary_flags(rule, stream_names)
    clock = MAX_NS if now is None else now
    nows = np.full(_distinct(sources, "sources"), clock)
    ordered = KERNEL.call(
        "assign",
        count,
        *_inputs(sources, streams, event_times, receive_times),
        boundaries,
        _distinct(streams, "streams"),
        *_numbers(rule),
        True,
        clock,
        nows,
        *found,
        verdicts,
        *working,
    )
    return _with_runs(Assignment(*found, verdicts, working[1][:ordered]), sources, streams, boundaries, rule)


def assign_judged(
    sources: npt.NDArray[Any],
    streams: npt.NDArray[Any],
    event_times: npt.NDArray[Any],
    verdicts: npt.NDArray[np.uint8],
    rule: EventTimeRule,
    nows: npt.NDArray[np.int64],
    stream_names: pa.Array | None = None,
) -> Assignment:
    """Find the window of every accepted row, given a reading of each source's receive clock.

    Parameters
    ----------
    sources, streams, event_times
        As of `assign_arrays`. Of equal rows (in source, stream and event time) the first is the one received first.
    verdicts
        The result of `find_late_and_future`; verdicts of accepted rows are changed.
    rule
        The checked options.
    nows
        For each source, the time at which its windows are judged: those that end more than ``max_delay`` before are
        decided.
    stream_names
        As of `assign_arrays`.

    Raises
    ------
    InvalidArgumentError
        As `assign_arrays`.
    UnavailableError
        As `assign_arrays`.
    """
    count = _checked_length(sources, streams, event_times, verdicts)
    found, working = _memory(count)
    boundaries = boundary_flags(rule, stream_names)
    ordered = KERNEL.call(
        "assign",
        count,
        *_inputs(sources, streams, event_times, event_times),
        boundaries,
        _distinct(streams, "streams"),
        *_numbers(rule),
        False,
        MAX_NS,
        nows,
        *found,
        verdicts,
        *working,
    )
    return _with_runs(Assignment(*found, verdicts, working[1][:ordered]), sources, streams, boundaries, rule)


def read_clocks(
    sources: npt.NDArray[np.int32], receive_times: npt.NDArray[np.int64], clocks: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return, for each message in reading order, the receive clock of its source.

    Parameters
    ----------
    sources
        Numbers from 0.
    receive_times
        int64 ns.
    clocks
        The receive clock of each source before; updated to its value afterwards.
    """
    readings = np.empty(len(receive_times), np.int64)
    plain = _plain(sources, np.int32).view(np.uint32), _plain(receive_times, np.int64)
    KERNEL.call("read_clocks", len(readings), *plain, clocks, readings)
    return readings


def find_late_and_future(
    event_times: npt.NDArray[np.int64], clock: npt.NDArray[np.int64], rule: EventTimeRule
) -> npt.NDArray[np.uint8]:
    """Apply the part of the rule that needs no other message: judge each row as accepted, late or future.

    Parameters
    ----------
    event_times, clock
        int64 ns; ``clock`` is the receive time of the row, or the receive clock's reading then.
    rule
        The checked options.

    Returns
    -------
    numpy.ndarray
        uint8, as the verdicts of `Assignment`.
    """
    verdicts = np.full(len(event_times), ACCEPTED, np.uint8)
    verdicts[event_times > np.minimum(clock, MAX_NS - rule.max_lead) + rule.max_lead] = FUTURE
    verdicts[event_times < np.maximum(clock, MIN_NS + rule.max_delay) - rule.max_delay] = LATE
    return verdicts


def closing_times(ends: npt.NDArray[np.int64], rule: EventTimeRule) -> npt.NDArray[np.int64]:
    """Return when windows with these ends close, in ns of the receive clock; no later than the end of time."""
    return np.minimum(ends, MAX_NS - rule.max_delay) + rule.max_delay


def ended_by_gap(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], rule: EventTimeRule) -> Any:
    """Return which of the windows that no conflict ended were ended by a silence."""
    return ends < np.minimum(starts, MAX_NS - rule.window) + rule.window


def _with_runs(
    found: Assignment,
    sources: npt.NDArray[Any],
    streams: npt.NDArray[Any],
    boundaries: npt.NDArray[np.uint8],
    rule: EventTimeRule,
) -> Assignment:
    if not rule.boundaries:
        return found
    return found._replace(runs=runs_of(found.order, found.starts, sources, streams, boundaries))


def _numbers(rule: EventTimeRule) -> tuple[int, int, int, int, int]:
    """Return the options in the order of the kernel."""
    return rule.window, rule.max_delay, rule.max_lead, CONFLICTS[rule.on_conflict], rule.silence


def _checked_length(sources: npt.NDArray[Any], streams: npt.NDArray[Any], *others: npt.NDArray[Any]) -> int:
    lengths = {len(sources), len(streams), *map(len, others)}
    if len(lengths) > 1:
        raise InvalidArgumentError(
            f"sources, streams, event_times and receive_times must have equal lengths, got {lengths}"
        )
    (count,) = lengths
    if count >= _MOST_ROWS:
        raise InvalidArgumentError(
            f"table must have fewer than {_MOST_ROWS} rows, got {count}. Split the table by source"
        )
    return count


def _inputs(
    sources: npt.NDArray[Any], streams: npt.NDArray[Any], event_times: npt.NDArray[Any], receive_times: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], ...]:
    return (
        _plain(sources, np.int32).view(np.uint32),
        _plain(streams, np.int32).view(np.uint32),
        _plain(event_times, np.int64),
        _plain(receive_times, np.int64),
    )


def _memory(count: int) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]:
    """Allocate the kernel's outputs except verdicts, and its working memory."""
    return (
        (np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.uint8)),
        (
            np.empty(count, np.int64),
            np.empty(count, np.uint32),
            np.empty(count, np.int64),
            np.empty(count, np.uint32),
            np.empty(count + 2, np.uint32),
        ),
    )


def _distinct(codes: npt.NDArray[Any], name: str) -> int:
    if not len(codes):
        return 0
    if codes.min() < 0:
        raise InvalidArgumentError(f"{name} must be integers ≥ 0, got {codes.min()}")
    return int(codes.max()) + 1


def _plain(values: npt.NDArray[Any], wanted: type[np.generic]) -> npt.NDArray[Any]:
    return np.require(values.astype(wanted, casting="safe", copy=False), requirements=["C", "A"])
