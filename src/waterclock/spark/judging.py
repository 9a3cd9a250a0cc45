"""Judges packed messages source by source with the columnar batcher: what Spark's tasks do after the shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.batching.columnar import Assignment, assign_arrays
from waterclock.batching.rule import EventTimeRule
from waterclock.spark.packing import PACKED_SCHEMA, POSITIONED, Records, cells, encoded, local_streams, stream_numbers
from waterclock.time import MAX_NS

OUTCOMES_SCHEMA = (
    f"{PACKED_SCHEMA}, rejection STRING, batches ARRAY<STRUCT<"
    "start: BIGINT, end: BIGINT, closed_at: BIGINT, conflict: BOOLEAN, first: INT, count: INT>>"
)
"""Packed rows of messages that met the same fate, as Spark writes them.

``rejection`` says why the messages are in no batch, or is null. Then they are in order of event time and stream, and
``batches`` says which of them each batch holds: ``count`` from the one numbered ``first`` on.
"""

_ACCEPTED = 0
_REJECTIONS = pa.array([None, "late", "future", "duplicate", "replaced"])
_JUDGED_AT_ONCE = 2**20
# A source may have any number of messages, a cell of Arrow or Spark no more than 2 GiB.
_LARGEST_ROW = 2**20


class _Judged(NamedTuple):
    """Messages in the order in which they leave, and what was found of each (see `Assignment`)."""

    messages: Records
    sources: npt.NDArray[np.int32]
    streams: npt.NDArray[np.int32]
    verdicts: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    conflicts: npt.NDArray[np.uint8]


def judge(batches: Iterable[pa.RecordBatch], record: np.dtype[Any], rule: EventTimeRule) -> Iterator[pa.RecordBatch]:
    """Find the batches of packed messages.

    Where messages have positions, a source's messages are taken in that order, and one whose receive time lies behind
    that of an earlier one is judged as received with it: so does a batcher that reads the topic message by message.

    Parameters
    ----------
    batches
        Packed rows (see `waterclock.spark.packing`), those of a source one after another.
    record
        `PLAIN` or `POSITIONED`, whichever they were packed with.
    rule
        The checked options.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `OUTCOMES_SCHEMA`.
    """
    for sources in _whole_sources(batches):
        yield _judge(sources, record, rule)


def _whole_sources(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather about a million messages at a time, without the last source, which may go on."""
    held: list[pa.Table] = []
    count = 0
    for batch in batches:
        held.append(pa.table(batch))
        count += _message_count(held[-1])
        if count < _JUDGED_AT_ONCE:
            continue
        rows = pa.concat_tables(held)
        names = rows.column("source")
        ended = pc.call_function("index", [names], pc.IndexOptions(names[-1])).as_py()
        if ended:
            yield rows.slice(0, ended)
            held = [rows.slice(ended)]
            count = _message_count(held[0])
    if held:
        yield pa.concat_tables(held)


def _message_count(rows: pa.Table) -> int:
    return int(rows.column("count").to_numpy().sum())


def _judge(packed: pa.Table, record: np.dtype[Any], rule: EventTimeRule) -> pa.RecordBatch:
    source_names, row_sources = encoded(packed.column("source"))
    messages = np.concatenate([_records(chunk, record) for chunk in packed.column("messages").chunks])
    rows = np.repeat(np.arange(packed.num_rows), packed.column("count").to_numpy())
    sources = row_sources[rows]
    stream_names, streams = stream_numbers(pa.concat_arrays(packed.column("streams").chunks), rows, messages["stream"])
    clock = messages["receive_time"]
    if record == POSITIONED:
        order = _reading_order(messages, sources, packed.column("count").to_numpy())
        messages, streams = messages[order], streams[order]
        clock = _running_maximum(sources, messages["receive_time"])
    event_times = np.ascontiguousarray(messages["event_time"])
    found = assign_arrays(sources, streams, event_times, clock, rule)
    order = _leaving_order(found, sources, streams, event_times)
    judged = _Judged(
        messages[order],
        sources[order],
        streams[order],
        found.verdicts[order],
        found.starts[order],
        found.ends[order],
        found.conflicts[order],
    )
    return _outcomes(judged, source_names, stream_names, rule)


def _records(cells: pa.BinaryArray, record: np.dtype[Any]) -> Records:
    """Read neighbouring cells as one array: they lie one after another already."""
    _, offsets, data = cells.cast(pa.binary()).buffers()
    bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].view(record)


def _reading_order(
    messages: Records, sources: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> npt.NDArray[np.intp]:
    """Order the messages of each source by position; ``counts`` says how many each packed row brought."""
    begins = np.cumsum(counts) - counts
    rows = _by_position(messages[begins], sources[begins])
    moved = counts[rows]
    order = np.repeat(begins[rows] - (np.cumsum(moved) - moved), moved) + np.arange(len(messages))
    # Rows come in any order, but what they hold was read in order, nearly always.
    if _is_ordered(messages[order], sources):
        return order
    return _by_position(messages, sources)


def _by_position(messages: Records, sources: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    return np.lexsort((messages["index"], messages["entry"], messages["ledger"], sources))


def _is_ordered(messages: Records, sources: npt.NDArray[np.int32]) -> bool:
    behind = np.zeros(len(messages) - 1, np.bool_)
    for name in ("index", "entry", "ledger"):
        values = messages[name]
        behind = (values[1:] < values[:-1]) | ((values[1:] == values[:-1]) & behind)
    return not (behind & (sources[1:] == sources[:-1])).any()


def _running_maximum(sources: npt.NDArray[np.int32], times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Replace each time that lies behind an earlier one of its source."""
    times = times.copy()
    behind = (times[1:] < times[:-1]) & (sources[1:] == sources[:-1])
    for source in np.unique(sources[1:][behind]):
        first, stop = np.searchsorted(sources, [source, source + 1])
        np.maximum.accumulate(times[first:stop], out=times[first:stop])
    return times


def _leaving_order(
    found: Assignment,
    sources: npt.NDArray[np.int32],
    streams: npt.NDArray[np.int32],
    event_times: npt.NDArray[np.int64],
) -> npt.NDArray[np.intp]:
    """Order the accepted messages by source, event time and stream, and after them the rejected by verdict."""
    accepted = found.order[found.verdicts[found.order] == _ACCEPTED].astype(np.intp)
    tied = np.flatnonzero(~_begins(event_times[accepted]))
    tied = np.union1d(tied, tied - 1)
    some = accepted[tied]
    accepted[tied] = some[np.lexsort((streams[some], event_times[some], sources[some]))]
    rejected = np.flatnonzero(found.verdicts != _ACCEPTED)
    return np.concatenate([accepted, rejected[np.argsort(found.verdicts[rejected], kind="stable")]])


def _outcomes(judged: _Judged, source_names: pa.Array, stream_names: pa.Array, rule: EventTimeRule) -> pa.RecordBatch:
    """Cut judged messages into rows, and those of a row into batches."""
    messages = judged.messages
    accepted = int(np.count_nonzero(judged.verdicts == _ACCEPTED))
    # Places where a batch begins; a message that is in none is by itself.
    fates = _begins(judged.verdicts, judged.sources)
    parts = np.flatnonzero(fates | _begins(judged.starts) | (judged.verdicts != _ACCEPTED))
    pieces = (parts - np.maximum.accumulate(np.where(fates[parts], parts, 0))) // _LARGEST_ROW
    row_parts = np.flatnonzero(fates[parts] | _begins(pieces))
    begins = parts[row_parts]
    counts = np.diff(begins, append=len(messages))
    rows = np.repeat(np.arange(len(begins)), counts)
    streams, messages["stream"] = local_streams(rows, len(begins), judged.streams, stream_names)
    windows = parts[: np.searchsorted(parts, accepted)]
    batches = pa.ListArray.from_arrays(
        np.minimum(np.append(row_parts, len(parts)), len(windows)).astype(np.int32),
        _batches(judged, windows, begins[rows[windows]], accepted, rule),
    )
    return pa.record_batch(
        {
            "source": source_names.take(pa.array(judged.sources[begins])),
            "streams": streams,
            "count": counts.astype(np.int32),
            "messages": cells(messages, np.append(begins, len(messages))),
            "rejection": _REJECTIONS.take(pa.array(judged.verdicts[begins])),
            "batches": batches,
        }
    )


def _batches(
    judged: _Judged,
    windows: npt.NDArray[np.intp],
    row_begins: npt.NDArray[np.intp],
    accepted: int,
    rule: EventTimeRule,
) -> pa.StructArray:
    """Describe the batches that begin at the places ``windows``, in rows that begin at ``row_begins``."""
    ends = judged.ends[windows]
    # Beyond int64 there is no time, so the last windows close at its end.
    closed_at = np.where(ends > MAX_NS - rule.max_delay, MAX_NS, ends + rule.max_delay)
    columns = {
        "start": judged.starts[windows],
        "end": ends,
        "closed_at": closed_at,
        "conflict": judged.conflicts[windows].astype(np.bool_),
        "first": (windows - row_begins).astype(np.int32),
        "count": np.diff(windows, append=accepted).astype(np.int32),
    }
    return pa.StructArray.from_arrays([pa.array(column) for column in columns.values()], list(columns))


def _begins(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell of each place whether any of the columns differs from the place before."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return begins
