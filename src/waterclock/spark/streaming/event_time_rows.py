"""Packed rows of many sources as arrays for the columnar rule of event time, and its verdicts as rows again."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import Assignment, closing_times
from waterclock.batching.event_time.rule import ACCEPTED, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.errors import SchemaError
from waterclock.spark.packing import Records, cells, encoded, local_streams, row_counts, stream_numbers
from waterclock.spark.streaming.outcome_rows import BATCH, REASONS, batch_structs

# By verdict.
_REJECTIONS = pa.array([REJECTIONS.get(verdict) for verdict in range(UNDECIDED)])
# A source may have any number of messages, a cell of Arrow or Spark no more than 2 GiB.
_LARGEST_ROW = 2**20


class Gathered(NamedTuple):
    """The messages of packed rows, in the order of the rows.

    Attributes
    ----------
    source_names
        Each source once, in the order in which they occur.
    stream_names
        Each stream once, in order of text.
    messages
        Records; their own numbers of streams count within their row.
    sources, streams
        Of each message, the index into the names; int32.
    """

    source_names: pa.Array
    stream_names: pa.Array
    messages: Records
    sources: npt.NDArray[np.int32]
    streams: npt.NDArray[np.int32]

    def take(self, order: npt.NDArray[np.intp]) -> Gathered:
        """Take some of the messages, in that order."""
        # Indexing would copy records field by field.
        messages = self.messages.take(order)
        return self._replace(messages=messages, sources=self.sources[order], streams=self.streams[order])


def gather(packed: pa.Table, record: np.dtype[Any]) -> Gathered:
    """Lay the messages of packed rows one after another, their sources and streams numbered alike.

    Raises
    ------
    SchemaError
        Where a cell does not hold as many messages as its row says, or others than ``record``.
    DamagedError
        Where a message is of a stream that its row does not name.
    """
    source_names, row_sources = encoded(packed.column("source"))
    parts = [_records(chunk, record) for chunk in packed.column("messages").chunks]
    messages = parts[0] if len(parts) == 1 else np.concatenate([part.view(np.uint8) for part in parts]).view(record)
    counts = row_counts(packed)
    if len(messages) != counts.sum():
        raise SchemaError(f"packed rows hold {len(messages)} messages, and say that they hold {counts.sum()}")
    rows = np.repeat(np.arange(packed.num_rows), counts)
    stream_names, streams = stream_numbers(pa.concat_arrays(packed.column("streams").chunks), rows, messages["stream"])
    return Gathered(source_names, stream_names, messages, row_sources[rows], streams)


def outcome_rows(gathered: Gathered, found: Assignment, rule: EventTimeRule) -> pa.RecordBatch:
    """Lay out what was decided of messages: rows of `waterclock.spark.streaming.outcome_rows.OUTCOMES_SCHEMA`.

    Parameters
    ----------
    gathered
        The messages.
    found
        What was found of each, in the same order.
    rule
        The checked options.
    """
    order = _leaving_order(gathered, found)
    leaving = gathered.take(order)
    messages, sources, verdicts = leaving.messages, leaving.sources, found.verdicts[order]
    accepted = int(np.count_nonzero(verdicts == ACCEPTED))
    # Places where a batch begins; a message that is in none is by itself.
    changes = begins(verdicts, sources)
    parts = np.flatnonzero(changes | begins(found.starts[order]) | (verdicts != ACCEPTED))
    pieces = (parts - np.maximum.accumulate(np.where(changes[parts], parts, 0))) // _LARGEST_ROW
    row_parts = np.flatnonzero(changes[parts] | begins(pieces))
    firsts = parts[row_parts]
    counts = np.diff(firsts, append=len(messages))
    rows = np.repeat(np.arange(len(firsts)), counts)
    streams, messages["stream"] = local_streams(rows, len(firsts), leaving.streams, gathered.stream_names)
    windows = parts[: np.searchsorted(parts, accepted)]
    ends = found.ends[order][windows]
    facts = np.empty(len(windows), BATCH)
    facts["start"], facts["end"] = found.starts[order][windows], ends
    facts["closed_at"] = closing_times(ends, rule)
    facts["reason"] = np.where(found.conflicts[order][windows], REASONS.index("conflict"), REASONS.index("timeout"))
    facts["first"] = windows - firsts[rows[windows]]
    facts["count"] = np.diff(windows, append=accepted)
    bounds = np.minimum(np.append(row_parts, len(parts)), len(windows)).astype(np.int32)
    return pa.record_batch(
        {
            "source": gathered.source_names.take(pa.array(sources[firsts])),
            "streams": streams,
            "count": counts.astype(np.int32),
            "messages": cells(messages, np.append(firsts, len(messages))),
            "rejection": _REJECTIONS.take(pa.array(verdicts[firsts])),
            "batches": pa.ListArray.from_arrays(bounds, batch_structs(facts)),
        }
    )


def begins(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell of each place whether any of the columns differs from the place before."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


def _records(column: pa.BinaryArray, record: np.dtype[Any]) -> Records:
    """Read neighbouring cells as one array: they lie one after another already."""
    _, offsets, data = column.cast(pa.binary()).buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    if (np.diff(bounds) % record.itemsize).any():
        raise SchemaError(f"packed rows hold messages that are not {record.itemsize} bytes each")
    if data is None:
        return np.empty(0, record)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].view(record)


def _leaving_order(gathered: Gathered, found: Assignment) -> npt.NDArray[np.intp]:
    """Order the accepted messages by source, event time and stream, and after them the rejected by verdict."""
    sources, streams, verdicts = gathered.sources, gathered.streams, found.verdicts
    accepted = found.order[verdicts[found.order] == ACCEPTED].astype(np.intp)
    times = gathered.messages["event_time"]
    tied = np.flatnonzero(~begins(times[accepted])) if len(accepted) else accepted
    tied = np.union1d(tied, tied - 1)
    some = accepted[tied]
    accepted[tied] = some[np.lexsort((streams[some], times[some], sources[some]))]
    rejected = np.flatnonzero((verdicts != ACCEPTED) & (verdicts != UNDECIDED))
    return np.concatenate([accepted, rejected[np.lexsort((sources[rejected], verdicts[rejected]))]])
