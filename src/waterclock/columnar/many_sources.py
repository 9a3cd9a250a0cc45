"""The messages of many sources as arrays: the input of the columnar rules, and the content of packed cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.columnar.cells import from_cell, to_cell
from waterclock.columnar.packing import encoded, reading_order, renumbered, row_counts, stream_numbers
from waterclock.columnar.records import Records, records_of
from waterclock.errors import DamagedError, SchemaError

_CELL = pa.schema(
    [
        ("sources", pa.list_(pa.string())),
        ("streams", pa.list_(pa.string())),
        ("source_of", pa.binary()),
        ("messages", pa.binary()),
    ]
)
"""One row: each source and stream once, and for each message its source's number (4 bytes) and its record."""

_NUMBER = np.dtype("<u4")


class ManySources(NamedTuple):
    """Messages of many sources."""

    source_names: pa.Array  # each source once
    stream_names: pa.Array  # each stream once, in order of text
    messages: Records  # records; their own stream numbers are ignored
    # For each message, the index into the names; int32.
    sources: npt.NDArray[np.int32]
    streams: npt.NDArray[np.int32]

    def take(self, order: npt.NDArray[np.intp]) -> ManySources:
        """Take some of the messages, in that order."""
        # Indexing would copy records field by field.
        messages = self.messages.take(order)
        return self._replace(messages=messages, sources=self.sources[order], streams=self.streams[order])

    def in_reading_order(self) -> ManySources:
        """Sort messages with positions by these, others by receive time; equal ones keep their order."""
        messages = self.messages
        if not len(messages):
            return self
        if "ledger" in (messages.dtype.names or ()):
            return self.take(reading_order(messages, np.zeros(len(messages), np.int32)))
        return self.take(np.argsort(messages["receive_time"], kind="stable"))

    def of_sources(self, wanted: npt.NDArray[np.intp]) -> ManySources:
        """Keep only the names of the sources at ``wanted``, to which all messages belong, and of streams that occur."""
        number = np.full(len(self.source_names), -1, np.int32)
        number[wanted] = np.arange(len(wanted), dtype=np.int32)
        met = np.bincount(self.streams, minlength=len(self.stream_names)) > 0
        return self._replace(
            source_names=self.source_names.take(pa.array(wanted)),
            stream_names=self.stream_names.filter(pa.array(met)),
            sources=number[self.sources],
            streams=(np.cumsum(met, dtype=np.int32) - 1)[self.streams] if len(met) else self.streams,
        )

    def to_cell(self) -> bytes:
        """Write it as one binary value."""
        columns = [
            _listed(self.source_names),
            _listed(self.stream_names),
            pa.array([self.sources.astype(_NUMBER).tobytes()], pa.binary()),
            pa.array([renumbered(self.messages, self.streams).tobytes()], pa.binary()),
        ]
        return to_cell(pa.RecordBatch.from_arrays(columns, schema=_CELL))


def nothing(record: np.dtype[Any]) -> ManySources:
    """Return no messages."""
    none = np.empty(0, np.int32)
    return ManySources(pa.array([], pa.string()), pa.array([], pa.string()), np.empty(0, record), none, none)


def from_packed(packed: pa.Table, record: np.dtype[Any]) -> ManySources:
    """Concatenate the messages of packed rows, with sources numbered in order of occurrence.

    Raises `SchemaError` if a cell does not hold the number of messages in its row, or has another record than
    ``record``. Raises `DamagedError` if a message refers to a stream that its row does not name.
    """
    source_names, row_sources = encoded(packed.column("source"))
    counts = row_counts(packed)
    chunks = packed.column("messages").chunks
    counts_of = np.split(counts, np.cumsum([len(chunk) for chunk in chunks])[:-1])
    parts = [records_of(chunk, some, record) for chunk, some in zip(chunks, counts_of, strict=True)]
    messages = _concatenated(parts, record)
    if len(messages) != counts.sum():
        raise SchemaError(f"packed rows hold {len(messages)} messages, but their counts add up to {counts.sum()}")
    rows = np.repeat(np.arange(packed.num_rows), counts)
    stream_names, streams = stream_numbers(pa.concat_arrays(packed.column("streams").chunks), rows, messages["stream"])
    return ManySources(source_names, stream_names, messages, row_sources[rows], streams)


def many_from_cell(cell: bytes | memoryview, record: np.dtype[Any], name: str = "a cell") -> ManySources:
    """Read the output of `ManySources.to_cell`, the records without a copy.

    Raises `DamagedError` if it is something else.
    """
    rows = from_cell(cell, _CELL, name)
    if rows.num_rows != 1 or any(column.null_count for column in rows.columns):
        raise DamagedError(f"{name} is corrupt: expected one row without nulls, got {rows.num_rows} rows")
    sources, streams, source_of, written = (column[0] for column in rows.columns)
    source_names, stream_names = sources.values, streams.values
    numbers = np.frombuffer(source_of.as_buffer(), _NUMBER) if len(source_of.as_buffer()) else np.empty(0, _NUMBER)
    data = written.as_buffer()
    if len(data) != len(numbers) * record.itemsize:
        raise DamagedError(f"{name} is corrupt: {len(data)} bytes are not a valid length for {len(numbers)} messages")
    messages = np.frombuffer(data, record) if len(data) else np.empty(0, record)
    if len(messages) and (
        numbers.max() >= len(source_names)
        or messages["stream"].max() >= len(stream_names)
        or source_names.null_count
        or stream_names.null_count
    ):
        raise DamagedError(f"{name} is corrupt: a message refers to an unknown source or stream")
    return ManySources(
        source_names, stream_names, messages, numbers.view(np.int32), messages["stream"].astype(np.int32)
    )


def joined(parts: Sequence[ManySources], record: np.dtype[Any]) -> ManySources:
    """Concatenate messages; sources are numbered in order of their occurrence in the parts' names."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return nothing(record)
    source_names, sources = _numbered([part.source_names for part in parts])
    stream_names, streams = _numbered([part.stream_names for part in parts])
    order = np.argsort(stream_names.to_numpy(zero_copy_only=False), kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return ManySources(
        source_names,
        stream_names.take(pa.array(order)),
        _concatenated([part.messages for part in parts], record),
        np.concatenate([number[part.sources] for number, part in zip(sources, parts, strict=True)]),
        np.concatenate([rank[number][part.streams] for number, part in zip(streams, parts, strict=True)]),
    )


def _numbered(names: list[pa.Array]) -> tuple[pa.Array, list[npt.NDArray[np.int32]]]:
    """Return each text once, in order of occurrence, and for each array the numbers of its texts."""
    every = pa.concat_arrays(names).dictionary_encode()
    return every.dictionary, np.split(every.indices.to_numpy(), np.cumsum([len(some) for some in names])[:-1])


def _concatenated(parts: list[Records], record: np.dtype[Any]) -> Records:
    # As bytes, because NumPy copies records field by field.
    return parts[0] if len(parts) == 1 else np.concatenate([part.view(np.uint8) for part in parts]).view(record)


def _listed(texts: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
