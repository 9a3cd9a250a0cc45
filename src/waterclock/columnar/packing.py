"""Packs messages for the exchange between Spark and Python: one row per source, with its messages in a binary cell.

A packed row has

- ``source``: text;
- ``streams``: array of text, the streams that occur;
- ``count``: the number of messages;
- ``messages``: binary, a cell of records, or a cell of differences between messages if they are not batched yet and
  have positions (`waterclock.columnar.records` describes both);
- ``clock``, only before batching: the latest receive time of the messages that a task packed together, microseconds
  since the epoch.

Payloads stay in the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import quoted
from waterclock.columnar.records import (
    NUMBERED,
    PACKING,
    PLAIN,
    POSITIONED,
    Records,
    cells_of_differences,
    cells_of_records,
    records,
    records_of,
    words,
)
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.time import MAX_NS
from waterclock.time_columns import as_nanoseconds

PACKED_SCHEMA = "source STRING, streams ARRAY<STRING>, count INT, messages BINARY"
"""The columns of a packed row of judged messages, as Spark writes them."""

CLOCKED_SCHEMA = f"{PACKED_SCHEMA}, clock BIGINT"
"""The columns of a packed row."""

ROWS = pa.schema(
    [("source", pa.string()), ("streams", pa.list_(pa.string())), ("count", pa.int32()), ("messages", pa.binary())]
)
"""The columns of a packed row, as Arrow writes them."""

UNPACKED_COLUMNS = "stream STRING, event_time BIGINT, receive_time BIGINT, ledger BIGINT, entry BIGINT, `index` INT"
"""The columns that `unpack` returns of each message in addition to its source, as Spark writes them."""

_NUMBERS = {
    "event_time": pa.int64(),
    "receive_time": pa.int64(),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "index": pa.int32(),
}

Cells = Callable[[Records, npt.NDArray[np.int64]], pa.BinaryArray]

_NO_STREAM = "packed messages are corrupt: a message refers to a stream that its row does not name"
_NS_PER_US = 1_000
_PACKED_AT_ONCE = 2**20
# Spark passes 10,000 rows of any size to Python at once if its expensive byte count is off (see session).
_LARGEST_CELL = 2**15


def pack(
    batches: Iterable[pa.RecordBatch], record: np.dtype[Any], cells: Cells | None = None
) -> Iterator[pa.RecordBatch]:
    """Pack messages into a few rows for each source.

    Parameters
    ----------
    batches
        With columns source and stream (text) and the fields of ``record``; times as `as_nanoseconds` takes them.
    record
        `PLAIN`, `POSITIONED` or `NUMBERED`.
    cells
        Builds the cells; None: `cells_of_differences` of messages with positions, otherwise `cells_of_records`.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `CLOCKED_SCHEMA`, made of about a million messages at once; within a row, messages are in order of their
        position, or keep their order if they have none.

    Raises
    ------
    InvalidArgumentError
        For a null in any of the columns.
    """
    if cells is None:
        cells = cells_of_differences if record == POSITIONED else cells_of_records
    for messages in together(batches, len):
        yield _pack(messages, record, cells)


def together(batches: Iterable[pa.RecordBatch], size: Callable[[pa.RecordBatch], int]) -> Iterator[pa.Table]:
    """Combine batches until they have about a million messages; ``size`` returns how many a batch holds."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += size(batch)
        if count >= _PACKED_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held)


def unpack(packed: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], dict[str, pa.Array]]:
    """Turn packed rows back into one row per message.

    Returns
    -------
    rows
        For each message, the number of its packed row.
    columns
        Those of `UNPACKED_COLUMNS`; nulls for the position if messages have none.
    """
    counts = row_counts(packed)
    rows = np.repeat(np.arange(len(counts)), counts)
    parts = _parts(packed.column("messages"), counts)
    numbers = np.concatenate([part["stream"] for part in parts])
    names, streams = stream_numbers(packed.column("streams"), rows, numbers)
    columns = {"stream": names.take(pa.array(streams))}
    for name, kind in _NUMBERS.items():
        columns[name] = pa.concat_arrays([_field(part, name, kind) for part in parts])
    return rows, columns


def _parts(cells: pa.BinaryArray, counts: npt.NDArray[np.int64]) -> list[Records]:
    """Read cells: as one array if all have the same records, as cells of batches do, otherwise each separately.

    NumPy and Arrow take 20 µs for the fields of an array, however few messages it has.
    """
    lengths = pc.call_function("binary_length", [cells]).to_numpy()
    for record in (PLAIN, POSITIONED):
        if (lengths == counts * record.itemsize).all():
            return [records_of(cells, counts, record)]
    return [records(cell.as_buffer(), count) for cell, count in zip(cells, counts, strict=True)]


def row_counts(packed: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
    """Return how many messages each packed row holds.

    Raises `SchemaError` if a row lacks a value, or has a negative count.
    """
    if any(packed.column(name).null_count for name in ("source", "streams", "count", "messages")):
        raise SchemaError("a packed row lacks its source, streams, count or messages")
    counts = packed.column("count").to_numpy()
    if (counts < 0).any():
        raise SchemaError(f"the count of a packed row must be ≥ 0, got {counts.min()}")
    return counts


def stream_numbers(
    streams: pa.ListArray, rows: npt.NDArray[np.int64], numbers: npt.NDArray[np.uint32]
) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Assign numbers to the streams of many packed rows together.

    Parameters
    ----------
    streams
        The ``streams`` of the rows.
    rows, numbers
        For each message, its row and the number of its stream there.

    Returns
    -------
    names
        Each stream once, in order of text.
    numbers
        For each message, the index of its stream in ``names``.
    """
    each = streams.flatten().dictionary_encode()
    order = np.argsort(each.dictionary.to_numpy(zero_copy_only=False), kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    offsets = streams.offsets.to_numpy()
    if (numbers >= np.diff(offsets)[rows]).any():
        raise DamagedError(_NO_STREAM)
    first = offsets[:-1] - offsets[0]
    return each.dictionary.take(pa.array(order)), rank[each.indices.to_numpy()][first[rows] + numbers]


def local_streams(
    rows: npt.NDArray[Any], row_count: int, numbers: npt.NDArray[Any], names: pa.Array
) -> tuple[pa.ListArray, npt.NDArray[np.uint32]]:
    """Assign numbers from 0 to the streams of each row; the inverse of `stream_numbers`.

    Parameters
    ----------
    rows, numbers
        For each message, its row, below ``row_count``, and the index of its stream in ``names``.

    Returns
    -------
    streams
        For each row, the streams that occur in it, in the order of ``names``.
    numbers
        For each message, the index of its stream among those of its row.
    """
    pairs, place = _distinct(rows.astype(np.int64) * len(names) + numbers, row_count * len(names))
    first = np.searchsorted(pairs, np.arange(row_count + 1) * len(names))
    local = (np.arange(len(pairs)) - first[pairs // len(names)]).astype(np.uint32)
    streams = pa.ListArray.from_arrays(first.astype(np.int32), names.take(pa.array(pairs % len(names))))
    return streams, local[place]


def _distinct(values: npt.NDArray[np.int64], bound: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return the occurring values from 0 to below ``bound``, in order, and the index of each in them."""
    if bound <= len(values):
        met = np.zeros(bound, np.bool_)
        met[values] = True
        return np.flatnonzero(met), (np.cumsum(met) - 1)[values]
    # There may be far more values than messages, so the occurring ones are found by hashing.
    hashed = pa.array(values).dictionary_encode()
    distinct = hashed.dictionary.to_numpy()
    order = np.argsort(distinct)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[hashed.indices.to_numpy()]


def reading_order(messages: Records, sources: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Order messages with positions by source, and by position within a source."""
    parts = [messages[name].astype(np.int64) for name in ("ledger", "entry", "index")]
    key = sources.astype(np.int64)
    for part in parts:
        low, high = int(part.min()), int(part.max())
        if (int(key.max()) + 1) * (high - low + 1) > MAX_NS:
            return np.lexsort((*reversed(parts), sources))
        key = key * (high - low + 1) + (part - low)
    # One number for all keys, because NumPy is then several times as fast; the runs of a source are already in order.
    return np.argsort(key, kind="stable")


def renumbered(messages: Records, numbers: npt.NDArray[Any]) -> Records:
    """Copy messages of one array, with other stream numbers."""
    copied = messages.view(np.uint8).copy().view(messages.dtype)  # records would be copied field by field
    copied["stream"] = numbers
    return copied


def _pack(table: pa.Table, record: np.dtype[Any], cells: Cells) -> pa.RecordBatch:
    columns = columns_of(table, record)
    source_names, sources = encoded(columns["source"])
    stream_names, streams = encoded(columns["stream"])
    streams_of, numbers = local_streams(sources, len(source_names), streams, stream_names)
    fields = [columns[name].to_numpy() for name in record.names or () if name != "stream"]
    fields.insert((record.names or ()).index("stream"), numbers)
    if record == POSITIONED and not PACKING.call("is_ascending", len(sources), *fields[-3:]):
        order = np.lexsort(fields[:-4:-1])
        sources, *fields = (field[order] for field in (sources, *fields))
    counts = np.bincount(sources, minlength=len(source_names))
    messages = np.empty(len(sources), record)
    if record == NUMBERED:
        order = np.lexsort((*fields[5:2:-1], sources))
        for name, field in zip(record.names or (), fields, strict=True):
            messages[name] = field[order]
        return _packed_rows(source_names, streams_of, counts, messages, cells)
    absent = [np.empty(0, kind) for kind in (np.int64, np.int64, np.int32)] if record == PLAIN else []
    places = np.cumsum(counts) - counts
    PACKING.call("scatter", len(sources), sources.astype(np.uint32), places, *fields, *absent, words(messages))
    return _packed_rows(source_names, streams_of, counts, messages, cells)


def _packed_rows(
    source_names: pa.Array, streams_of: pa.ListArray, counts: npt.NDArray[np.int64], messages: Records, cells: Cells
) -> pa.RecordBatch:
    bounds, row_sources = _rows(counts, _LARGEST_CELL // messages.itemsize)
    return pa.record_batch(
        {
            "source": source_names.take(pa.array(row_sources)),
            "streams": streams_of.take(pa.array(row_sources)),
            "count": np.diff(bounds).astype(np.int32),
            "messages": cells(messages, bounds),
            "clock": pa.repeat(clock_of(messages), len(row_sources)),
        }
    )


def _field(messages: Records, name: str, kind: pa.DataType) -> pa.Array:
    if name in (messages.dtype.names or ()):
        return pa.array(messages[name], kind)
    return pa.nulls(len(messages), kind)


def columns_of(table: pa.Table, record: np.dtype[Any]) -> dict[str, pa.ChunkedArray]:
    """Return the columns of messages that `pack` takes, times as nanoseconds.

    Raises
    ------
    InvalidArgumentError
        For a null in any of them.
    """
    columns = {name: _column(table, name) for name in ("source", *(record.names or ()))}
    return columns | {name: as_nanoseconds(columns[name], name) for name in ("event_time", "receive_time")}


def clock_of(messages: Records) -> int:
    """Return the latest receive clock of some messages, in microseconds."""
    return int(messages["receive_time"].max()) // _NS_PER_US


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    column = table.column(name)
    if column.null_count:
        raise InvalidArgumentError(f"column {quoted(name)} must not hold nulls. Filter out or fill the nulls")
    return column


def encoded(column: pa.ChunkedArray) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Return each text of a column once, in order of occurrence, and for each row the number of its text.

    Raises
    ------
    InvalidArgumentError
        For bytes that are not UTF-8, which Spark allows in a text.
    """
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    chunks = column.unify_dictionaries().chunks
    _check_utf8(chunks[0].dictionary)
    return chunks[0].dictionary, np.concatenate([chunk.indices.to_numpy() for chunk in chunks])


def _check_utf8(texts: pa.Array) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        for value in texts.cast(pa.binary()).to_pylist():
            if not _is_utf8(value):
                raise InvalidArgumentError(
                    f"source and stream must be UTF-8, got {quoted(value)}. Convert the bytes to text, for"
                    " example with hex(key), or filter such rows out with is_valid_utf8(CAST(key AS STRING))"
                ) from error
        raise


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows(counts: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut each source's run of messages into rows of at most ``most``; return their bounds, and the source of each."""
    rows_of = -(-counts // most)
    row_sources = np.repeat(np.arange(len(counts)), rows_of)
    place = np.arange(len(row_sources)) - np.repeat(np.cumsum(rows_of) - rows_of, rows_of)
    begins = np.repeat(np.cumsum(counts) - counts, rows_of) + place * most
    return np.append(begins, counts.sum()), row_sources
