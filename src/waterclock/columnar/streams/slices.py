"""Cuts packed rows into slices: several small sources, or a part of a large source. One call batches one slice.

Spark sorts the rows of a task by source, so rows after a source with very many messages would wait until that source is
batched. The slices of such a source are written to a temporary file of the task, and batched last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock._support.closing import closing_writer
from waterclock._support.quoting import quoted
from waterclock.columnar.many_sources import ManySources, from_packed
from waterclock.columnar.packing import ROWS, encoded, reading_order, renumbered
from waterclock.columnar.records import POSITIONED, Records, cells_of_records
from waterclock.columnar.streams.judged_rows import begins
from waterclock.errors import InvalidArgumentError

# Larger arrays get new memory each time, which takes as long to allocate as to fill.
_JUDGED_AT_ONCE = 2**17
# If a source has more, a slice is judged before the rest is read: a message takes some 200 bytes of memory.
_MOST_OF_A_SOURCE = 2**20
_IN_MEMORY = 2**16

_Position = tuple[int, int, int]


class StreamSlice(NamedTuple):
    """Packed rows to be judged at once."""

    rows: pa.Table  # rows of some sources, or a part of one source's rows
    begun: bool  # whether they continue the source of the last slice
    ends: bool  # whether no more rows of these sources follow


def slices(
    batches: Iterable[pa.RecordBatch], *, sliced: bool, by_entry: bool = False, record: np.dtype[Any] = POSITIONED
) -> Iterator[StreamSlice]:
    """Cut rows between sources, and within sources with very many messages, which come last.

    Raises `InvalidArgumentError` if the rows of a cut source are not in that order.

    Parameters
    ----------
    batches
        Packed rows, source by source.
    sliced
        Whether a source may be cut. Then messages have positions, the rows of a source are in order of their first
        one, and a row's first message is its earliest.
    by_entry
        Cut between entries only.
    record
        Of a source that may be cut: `POSITIONED` or `NUMBERED`.
    """
    waiting: list[tuple[int, bool, bool]] = []
    # The executor's folder may lie on a larger disk than the system's temporary folder; the file is created on first
    # use.
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
    with SpooledTemporaryFile(_IN_MEMORY, dir=folder) as file:
        with closing_writer(pa.ipc.new_stream(file, ROWS)) as writer:
            for rows, begun, ends in _cut(batches, sliced=sliced, by_entry=by_entry, record=record):
                if ends and not begun:
                    yield StreamSlice(rows, begun, ends)
                    continue
                parts = rows.to_batches()
                waiting.append((len(parts), begun, ends))
                for part in parts:
                    writer.write_batch(part)
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            for count, begun, ends in waiting:
                yield StreamSlice(pa.Table.from_batches(islice(reader, count), ROWS), begun, ends)


def _cut(
    batches: Iterable[pa.RecordBatch], *, sliced: bool, by_entry: bool, record: np.dtype[Any]
) -> Iterator[StreamSlice]:
    """Cut rows as `slices` describes, in their given order."""
    held: list[pa.Table] = []
    begun, most, judged = False, _MOST_OF_A_SOURCE, (-1, -1, -1)
    for batch in filter(len, batches):
        rows = pa.concat_tables([*held, pa.table(batch).select(ROWS.names).cast(ROWS)])
        new_source = np.flatnonzero(begins(encoded(rows.column("source"))[1]))
        counts = rows.column("count").to_numpy()
        firsts = (np.cumsum(counts) - counts)[new_source]
        apart = begins(firsts // _JUDGED_AT_ONCE)
        of_last = int(counts[new_source[-1] :].sum())
        apart[1:2] |= begun
        # The state of the previous source does not belong to this one.
        is_large = sliced and of_last >= (most if len(new_source) == 1 else _MOST_OF_A_SOURCE)
        apart[-1] |= is_large
        cuts = new_source[apart]
        for first, stop in pairwise(cuts):
            if begun:
                _split(rows.slice(first, stop - first), judged, by_entry=by_entry, record=record)
            yield StreamSlice(rows.slice(first, stop - first), begun, ends=True)
            begun, most, judged = False, _MOST_OF_A_SOURCE, (-1, -1, -1)
        # The last source may continue in the next batch.
        rows = rows.slice(cuts[-1])
        if is_large:
            ready, rest, judged = _split(rows, judged, by_entry=by_entry, record=record)
            # If nothing can be judged yet, do not search again with every batch.
            most = max(_MOST_OF_A_SOURCE, 2 * sum(rest.column("count").to_pylist()))
            if ready is not None:
                yield StreamSlice(ready, begun, ends=False)
                begun = True
            rows = rest
        held = [rows]
    for rows in held:
        if begun:
            _split(rows, judged, by_entry=by_entry, record=record)
        yield StreamSlice(rows, begun, ends=True)


def _split(
    rows: pa.Table, judged: _Position, *, by_entry: bool, record: np.dtype[Any]
) -> tuple[pa.Table | None, pa.Table, _Position]:
    """Split a source's messages at the start of its last row; return both parts, and that start."""
    many = from_packed(rows, record)
    messages = many.messages
    place = _position(messages, len(messages) - rows.column("count")[-1].as_py())
    if by_entry:
        place = (*place[:2], -1)
    ordered = many.take(reading_order(messages, many.sources))
    if len(messages) and _position(ordered.messages, 0) < judged:
        raise InvalidArgumentError(
            "packed rows must be in order of position, got earlier messages of source"
            f" {quoted(many.source_names[0].as_py())} after later ones. Read the topic with the format"
            " waterclock and the option packed"
        )
    ready = int(np.count_nonzero(_before(ordered.messages, place)))
    if not ready:
        return None, rows, judged
    return _repacked(ordered, slice(0, ready)), _repacked(ordered, slice(ready, None)), place


def _position(messages: Records, number: int) -> _Position:
    message = messages[number]
    return int(message["ledger"]), int(message["entry"]), int(message["index"])


def _before(messages: Records, place: _Position) -> npt.NDArray[np.bool_]:
    ledger, entry, index = place
    in_entry = (messages["entry"] < entry) | ((messages["entry"] == entry) & (messages["index"] < index))
    return (messages["ledger"] < ledger) | ((messages["ledger"] == ledger) & in_entry)


def _repacked(ordered: ManySources, part: slice) -> pa.Table:
    messages = renumbered(ordered.messages[part], ordered.streams[part])
    columns = [
        ordered.source_names,
        pa.array([ordered.stream_names.to_pylist()], ROWS.field("streams").type),
        pa.array([len(messages)], pa.int32()),
        cells_of_records(messages, np.array([0, len(messages)])),
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)
