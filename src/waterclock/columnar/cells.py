"""Writes and reads rows as one binary value: an Arrow record batch without its schema."""

from __future__ import annotations

import pyarrow as pa

from waterclock.errors import DamagedError


def to_cell(rows: pa.RecordBatch) -> bytes:
    """Write rows as one binary value, for a reader that knows their columns."""
    return rows.serialize().to_pybytes()


def from_cell(cell: bytes | memoryview, columns: pa.Schema, name: str = "a cell") -> pa.RecordBatch:
    """Read the output of `to_cell`, without a copy.

    Raises `DamagedError` if it is something else.
    """
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(cell), columns)
        rows.validate()
    except (pa.ArrowException, EOFError, OSError) as error:
        raise DamagedError(f"{name} is corrupt: {error}") from error
    return rows
