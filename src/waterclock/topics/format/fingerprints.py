"""Computes one number from the contents of a table of messages, to compare the data read back with the data written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.checksum import checksum


def fingerprint(table: pa.Table) -> int:
    """Return a checksum of the values of all columns, independent of their chunks and their layout in memory."""
    result = 0
    for column in table.columns:
        streams: list[int] = []
        for chunk in column.chunks:
            for number, data in enumerate(_streams(chunk)):
                if number == len(streams):
                    streams.append(0)
                streams[number] = checksum(data, streams[number])
        result = checksum(np.array(streams, dtype="<u4").tobytes(), result)
    return result


def _streams(array: pa.Array) -> Iterator[memoryview]:
    """Convert an array to byte streams; arrays of one type have the same number of them."""
    yield _bytes(pc.call_function("is_valid", [array]).cast(pa.int8()).to_numpy(zero_copy_only=False))
    given = array.drop_null() if array.null_count else array  # the bytes under a null are meaningless
    if pa.types.is_integer(array.type):
        yield _bytes(given.to_numpy(zero_copy_only=False))
        return
    ends = _ends(given)
    yield _bytes(np.diff(ends))
    if pa.types.is_map(array.type):
        for child in (given.keys, given.items):
            yield from _streams(child.slice(ends[0], ends[-1] - ends[0]))
    else:
        data = given.buffers()[2]
        yield memoryview(b"") if data is None else memoryview(data)[ends[0] : ends[-1]]


def _bytes(numbers: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(numbers).view(np.uint8).data


def _ends(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the end of each value in the array's data, relative to the start of the first."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
