"""Checks Arrow IPC from clients before it is used.

Some features turn a few bytes into terabytes in memory, and are refused: compressed buffers, dictionaries whose values
are repeated, and columns of the null type without buffers.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from waterclock.arrow import MESSAGE_SCHEMA, batches_from_ipc
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

_HEADER_TYPE, _HEADER = 1, 2
"""Fields of a Message in Arrow's flatbuffers."""

_RECORD_BATCH = 3
_COMPRESSION = 3
"""The field of a RecordBatch that says how its buffers are compressed."""


def table_of(body: bytes) -> pa.Table:
    """Return the messages of an Arrow IPC stream.

    Raises `InvalidArgumentError` if it is corrupt, compressed, or has a dictionary. Raises `SchemaError` if it is not
    Arrow IPC, or its columns are not those of messages.
    """
    try:
        _check_messages(body)
        batches = batches_from_ipc(body)
    except (pa.ArrowException, OSError, struct.error, UnicodeDecodeError, DamagedError, EOFError) as error:
        raise InvalidArgumentError("the body must be a whole Arrow IPC stream, got a corrupt stream") from error
    return pa.Table.from_batches(batches)


def _check_messages(body: bytes) -> None:
    """Check the columns, and that no record batch is compressed, before a buffer is read."""
    source = pa.BufferReader(pa.py_buffer(body))
    try:
        first = pa.ipc.read_message(source)
    except (pa.ArrowException, EOFError, OSError):
        raise SchemaError("the body must be an Arrow IPC stream of messages") from None
    if first.type != "schema":
        raise SchemaError("the body must be an Arrow IPC stream of messages")
    _check_schema(pa.ipc.read_schema(first))
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise InvalidArgumentError(
                "the body must be Arrow IPC without compression or dictionaries. Write the body with IpcWriteOptions()"
            )


def _check_schema(schema: pa.Schema) -> None:
    known = {field.name: field.type for field in MESSAGE_SCHEMA}
    given = {field.name: field.type for field in schema}
    for name, kind in given.items():
        if known.get(name) != kind:
            wanted = f"{known[name]}" if name in known else f"one of {', '.join(known)}"
            raise SchemaError(f"column {name!r} must be {wanted}, got {kind}")
    for name in ("source", "stream", "event_time"):
        if name not in given:
            raise SchemaError(f"no column named {name!r}; messages have {', '.join(known)}")


def _is_compressed(metadata: bytes) -> bool:
    message = _unsigned(metadata, 0)
    kind = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if kind is None or header is None or metadata[kind] != _RECORD_BATCH:
        return True  # not the type that the message declared
    return _field(metadata, header + _unsigned(metadata, header), _COMPRESSION) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a flatbuffer's table; None if it is missing."""
    (back,) = struct.unpack_from("<i", metadata, table)
    offsets = table - back
    (length,) = struct.unpack_from("<H", metadata, offsets)
    at = 4 + 2 * number
    if at >= length:
        return None
    (offset,) = struct.unpack_from("<H", metadata, offsets + at)
    return table + offset if offset else None


def _unsigned(metadata: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<I", metadata, at)
    return value
