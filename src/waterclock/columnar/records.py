"""Encodes messages as records in binary cells: records of a fixed width, or differences between messages.

A record has, little-endian and without padding, ``event_time`` (8 bytes, ns), ``receive_time`` (8 bytes, ns) and
``stream`` (4 bytes, an index into the names, which are stored next to the cell). If messages have positions, it also
has ``ledger`` (8 bytes), ``entry`` (8 bytes) and ``index`` (4 bytes). So its length is 20 bytes, or 40 with a position.
NumPy reads such a cell in place, and Arrow makes many cells from one array without copying.

A cell of differences, which is passed between Spark's tasks and processes, is about a third as long. It has

- the record of its first message, with a position: 40 bytes;
- a byte for each field: the width of its differences, 0 to 8 bytes;
- field by field, the difference of each message from the message before it: an integer d, modulo 2⁶⁴, written as 2d, or
  as -2d - 1 if it is negative;
- a zero byte if the length would otherwise be even. An odd length shows that a cell holds differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.kernels import Kernel
from waterclock.errors import DamagedError, SchemaError

PACKING = Kernel("waterclock.columnar.packing_kernel")

PLAIN = np.dtype([("event_time", "<i8"), ("receive_time", "<i8"), ("stream", "<u4")])
"""The record of a message without position."""

POSITIONED = np.dtype([*PLAIN.descr, ("ledger", "<i8"), ("entry", "<i8"), ("index", "<i4")])
"""The record of a message with its position."""

NUMBERED = np.dtype([*POSITIONED.descr, ("number", "<i8")])
"""The record of a message with its position and its id, for batching by id; cells of it are never differences."""

Records = npt.NDArray[Any]


def records(cell: bytes | bytearray | memoryview | pa.Buffer, count: int) -> Records:
    """Read a cell as a NumPy array of records; one of records without copying.

    Raises
    ------
    SchemaError
        If the cell is missing, or its length is not that of ``count`` messages.
    DamagedError
        If it has the length of a cell of differences, but is corrupt.
    """
    if cell is None or count is None:  # pyright: ignore[reportUnnecessaryComparison]  # as a DataFrame may have it
        raise SchemaError("a packed row lacks its count or its messages")
    for record in (PLAIN, POSITIONED):
        if len(cell) == count * record.itemsize:
            return np.frombuffer(cell, record)
    if len(cell) % 2:
        return _read(np.frombuffer(cell, np.uint8), np.array([0, len(cell)]), np.array([count]))
    raise SchemaError(
        f"a packed row must hold {count} messages of {PLAIN.itemsize} or {POSITIONED.itemsize} bytes, got {len(cell)}"
        " bytes"
    )


def records_of(cells: pa.BinaryArray, counts: npt.NDArray[np.int64], record: np.dtype[Any]) -> Records:
    """Read cells of this many messages each as one array; adjacent cells of records without copying.

    Raises `SchemaError` if cells hold other messages than ``record``. Raises `DamagedError` if cells of differences are
    corrupt.
    """
    _, offsets, data = cells.cast(pa.binary()).buffers()
    bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    held = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    lengths = np.diff(bounds)
    if record == POSITIONED and (lengths % 2).any():
        return _read(held, bounds.astype(np.int64), counts)
    if (lengths % record.itemsize).any():
        raise SchemaError(f"packed rows must hold messages of {record.itemsize} bytes each")
    return held[bounds[0] : bounds[-1]].view(record)


def _read(held: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Records:
    kernel, counts = PACKING.compiled, counts.astype(np.int64)
    if not kernel.are_whole(held, bounds, counts):
        raise DamagedError("packed messages are corrupt: the length of a cell does not match its header")
    read = np.empty(counts.sum(), POSITIONED)
    kernel.read_cells(held, bounds, counts, words(read))
    return read


def cells_of_records(messages: Records, bounds: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Build cells of ``messages`` without copying: cell i holds those from ``bounds[i]`` to ``bounds[i + 1]``."""
    offsets = (bounds * messages.itemsize).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(messages.view(np.uint8))]
    )


def cells_of_differences(messages: Records, bounds: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Build cells as `cells_of_records` does, from the differences of ``messages`` with positions.

    None holds more than `packing_kernel.MOST_IN_A_CELL`.
    """
    kernel, rows = PACKING.compiled, words(messages)
    widths = np.empty((len(bounds) - 1, len(kernel.FIELDS)), np.uint8)
    kernel.measure(rows, bounds, widths)
    lengths = (kernel.HEADER_BYTES + widths.sum(1, dtype=np.int64) * (np.diff(bounds) - 1)) | 1
    places = np.append(0, np.cumsum(lengths))
    data = np.zeros(places[-1], np.uint8)
    kernel.write_differences(rows, bounds, widths, places, data)
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data)]
    )


def without_numbers(messages: Records) -> Records:
    """Copy `NUMBERED` records as `POSITIONED` ones."""
    return np.ascontiguousarray(words(messages)[:, : POSITIONED.itemsize // 4]).view(POSITIONED).ravel()


def words(messages: Records) -> npt.NDArray[np.uint32]:
    """View records as rows of numbers of four bytes, without copying if they are aligned."""
    return np.require(messages.view(np.uint32), requirements=["A"]).reshape(len(messages), messages.itemsize // 4)
