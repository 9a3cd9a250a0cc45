"""Reads the columns that batching needs from a table of messages, and builds columns with nulls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import counted
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.time_columns import as_nanoseconds


def refuse_added(table: pa.Table, added: Iterable[str]) -> None:
    """Raise an error unless a value is a table that lacks the columns that will be added."""
    if not isinstance(table, pa.Table):
        raise InvalidArgumentError(f"table must be a pyarrow.Table, got a {type(table).__name__}")
    for name in added:
        if name in table.schema.names:
            raise SchemaError(f"table must not have a column {name!r}. Drop or rename that column")


def column_of(table: pa.Table, name: str, *, nulls: bool = False) -> pa.ChunkedArray:
    """Return a column of a table, which must occur exactly once and, unless ``nulls``, hold none."""
    if table.schema.names.count(name) != 1:
        raise SchemaError(f"column {name!r} must occur exactly once in table, got columns {table.schema.names}")
    column = table.column(name)
    if column.null_count and not nulls:
        raise InvalidArgumentError(f"column {name!r} must not hold nulls, got {counted(column.null_count, 'null')}")
    return column


def times_of(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return a column of times, ns."""
    column = as_nanoseconds(column_of(table, name), name)
    return _joined(column.chunks, pa.int64()).to_numpy()


def numbered_texts(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return a number for each text of a column, and the texts by their numbers."""
    column = column_of(table, name)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string_view(text):
        column, text = column.cast(pa.large_string()), pa.large_string()
    if not (pa.types.is_string(text) or pa.types.is_large_string(text)):
        raise SchemaError(f"column {name!r} must hold strings or dictionary-encoded strings, got {column.type}")
    if pa.types.is_dictionary(column.type) and not _numbers_each_text_once(column):
        column = column.cast(text)
        if column.null_count:
            raise InvalidArgumentError(f"column {name!r} must not hold nulls, got {counted(column.null_count, 'null')}")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = column.unify_dictionaries().chunks
    codes = [chunk.indices.cast(pa.int32()) for chunk in chunks]
    return _joined(codes, pa.int32()).to_numpy(), chunks[0].dictionary if chunks else pa.array([], text)


def _numbers_each_text_once(column: pa.ChunkedArray) -> bool:
    """Return whether equal texts have equal numbers: an Arrow dictionary may repeat a text, and hold nulls."""
    dictionaries = [chunk.dictionary for chunk in column.chunks]
    return all(
        not each.null_count and pc.call_function("count_distinct", [each]).as_py() == len(each) for each in dictionaries
    )


def _joined(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    # Joining a single chunk would copy it.
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def with_nulls(kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Build a column in which invalid rows are null."""
    bits = np.packbits(valid, bitorder="little")
    nulls = len(values) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(bits), pa.py_buffer(values)], nulls)
