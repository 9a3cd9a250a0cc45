"""Judges packed messages source by source with the columnar batcher: what Spark's tasks do after the shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import Assignment, assign_arrays, closing_times
from waterclock.batching.event_time.rule import ACCEPTED, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.errors import SchemaError
from waterclock.spark.packing import (
    PACKED_SCHEMA,
    POSITIONED,
    Records,
    cells,
    encoded,
    local_streams,
    reading_order,
    row_counts,
    stream_numbers,
)
from waterclock.spark.streaming.outcome_rows import BATCH, BATCHES_TYPE, REASONS, batch_structs

OUTCOMES_SCHEMA = f"{PACKED_SCHEMA}, rejection STRING, batches {BATCHES_TYPE}"
"""Packed rows of messages with the same verdict, as Spark writes them.

``rejection`` says why the messages are in no batch, or is null. Then they are in order of event time and stream, and
``batches`` says which of them each batch holds: ``count`` from the one numbered ``first`` on.
"""

# By verdict; of a replay all are decided.
_REJECTIONS = pa.array([REJECTIONS.get(verdict) for verdict in range(UNDECIDED)])
# Larger arrays are new memory each time, which takes as long to get as to fill.
_JUDGED_AT_ONCE = 2**17
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
    """Cut rows between sources, so that about a million messages are judged at once."""
    held: list[pa.Table] = []
    for batch in filter(len, batches):
        rows = pa.concat_tables([*held, pa.table(batch)])
        new_source = np.flatnonzero(_begins(encoded(rows.column("source"))[1]))
        counts = rows.column("count").to_numpy()
        begins = (np.cumsum(counts) - counts)[new_source]
        cuts = new_source[_begins(begins // _JUDGED_AT_ONCE)]
        for first, stop in pairwise(cuts):
            yield rows.slice(first, stop - first)
        # The last source may go on in the next batch.
        held = [rows.slice(cuts[-1])]
    yield from held


def _judge(packed: pa.Table, record: np.dtype[Any], rule: EventTimeRule) -> pa.RecordBatch:
    source_names, row_sources = encoded(packed.column("source"))
    parts = [_records(chunk, record) for chunk in packed.column("messages").chunks]
    messages = parts[0] if len(parts) == 1 else np.concatenate(parts)
    counts = row_counts(packed)
    if len(messages) != counts.sum():
        raise SchemaError(f"packed rows hold {len(messages)} messages, and say that they hold {counts.sum()}")
    rows = np.repeat(np.arange(packed.num_rows), counts)
    sources = row_sources[rows]
    stream_names, streams = stream_numbers(pa.concat_arrays(packed.column("streams").chunks), rows, messages["stream"])
    clock = messages["receive_time"]
    if record == POSITIONED:
        order = reading_order(messages, sources)
        # Indexing would copy records field by field, here and below.
        messages, streams = messages.take(order), streams[order]
        clock = _running_maximum(sources, messages["receive_time"])
    event_times = np.ascontiguousarray(messages["event_time"])
    found = assign_arrays(sources, streams, event_times, clock, rule)
    order = _leaving_order(found, sources, streams, event_times)
    judged = _Judged(
        messages.take(order),
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
    if (np.diff(bounds) % record.itemsize).any():
        raise SchemaError(f"packed rows hold messages that are not {record.itemsize} bytes each")
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].view(record)


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
    accepted = found.order[found.verdicts[found.order] == ACCEPTED].astype(np.intp)
    tied = np.flatnonzero(~_begins(event_times[accepted]))
    tied = np.union1d(tied, tied - 1)
    some = accepted[tied]
    accepted[tied] = some[np.lexsort((streams[some], event_times[some], sources[some]))]
    rejected = np.flatnonzero(found.verdicts != ACCEPTED)
    return np.concatenate([accepted, rejected[np.argsort(found.verdicts[rejected], kind="stable")]])


def _outcomes(judged: _Judged, source_names: pa.Array, stream_names: pa.Array, rule: EventTimeRule) -> pa.RecordBatch:
    """Cut judged messages into rows, and those of a row into batches."""
    messages = judged.messages
    accepted = int(np.count_nonzero(judged.verdicts == ACCEPTED))
    # Places where a batch begins; a message that is in none is by itself.
    changes = _begins(judged.verdicts, judged.sources)
    parts = np.flatnonzero(changes | _begins(judged.starts) | (judged.verdicts != ACCEPTED))
    pieces = (parts - np.maximum.accumulate(np.where(changes[parts], parts, 0))) // _LARGEST_ROW
    row_parts = np.flatnonzero(changes[parts] | _begins(pieces))
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
    facts = np.empty(len(windows), BATCH)
    facts["start"], facts["end"] = judged.starts[windows], ends
    facts["closed_at"] = closing_times(ends, rule)
    facts["reason"] = np.where(judged.conflicts[windows], REASONS.index("conflict"), REASONS.index("timeout"))
    facts["first"] = windows - row_begins
    facts["count"] = np.diff(windows, append=accepted)
    return batch_structs(facts)


def _begins(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell of each place whether any of the columns differs from the place before."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return begins
