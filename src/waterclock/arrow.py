"""Messages as Arrow columns, the form in which entries, batches and files store messages.

Times are int64 nanoseconds, never Arrow timestamps, because Spark cannot read nanosecond timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import counted, quoted
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message, Position
from waterclock.time import TimeUnit
from waterclock.time_columns import as_nanoseconds

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("publish_time", pa.int64()),
        pa.field("receive_time", pa.int64()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of a message, without its position."""

POSITION_FIELDS = (
    pa.field("ledger", pa.int64()),
    pa.field("entry", pa.int64()),
    pa.field("index", pa.int32()),
)
"""The columns of a position, for messages that have one."""

POSITIONED_SCHEMA = pa.schema([*MESSAGE_SCHEMA, *POSITION_FIELDS])
"""The columns of a message and its position."""

MESSAGE_TIMES = ("event_time", "publish_time", "receive_time")
"""The columns of a message that hold times, int64 nanoseconds."""

_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())

MOST_BYTES = (1 << 31) - 2
"""Maximum bytes in one column of texts or payloads: Arrow counts them with 31 bits, and splits a larger column."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_UNCOMPRESSED = pa.ipc.IpcWriteOptions()
_STREAM = b"\xff\xff\xff\xff"
WORTH_COMPRESSING = 4096
"""Less output than this is not compressed: compression would double the time, and make one or two messages larger."""


def to_arrow(messages: Sequence[Message], *, positions: bool = False) -> pa.RecordBatch:
    """Lay messages out as columns (`MESSAGE_SCHEMA`, or `POSITIONED_SCHEMA` with ``positions``).

    Raises
    ------
    InvalidArgumentError
        For a text that has no UTF-8 form, and for more than `MOST_BYTES` in a column.
    """
    size = sum([len(m.payload) for m in messages])
    if size > MOST_BYTES:
        raise _too_large("payload", f"{size} bytes")
    if (size := _header_bytes(messages)) > MOST_BYTES:  # pyarrow ends the process
        raise _too_large("headers", f"{size} bytes")
    columns: list[Any] = [
        [m.source for m in messages],
        [m.stream for m in messages],
        [m.event_time for m in messages],
        [m.publish_time for m in messages],
        [m.receive_time for m in messages],
        [None if m.headers is None else list(m.headers.items()) for m in messages],
        [m.payload for m in messages],
    ]
    schema = MESSAGE_SCHEMA
    if positions:
        schema = POSITIONED_SCHEMA
        columns += [[None if m.position is None else m.position[i] for m in messages] for i in range(3)]
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"text must be valid Unicode, got the lone surrogate {quoted(error.object[error.start : error.end])}."
            " Repair the text, or replace the surrogate: text.encode(errors='replace').decode()"
        ) from None
    for array, field in zip(arrays, schema, strict=True):
        if isinstance(array, pa.ChunkedArray):
            raise _too_large(field.name, f"{array.nbytes} bytes")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header_bytes(messages: Sequence[Message]) -> int:
    """Return the bytes of all headers: an upper bound if that is small enough, because an exact count has to encode."""
    headers = [m.headers for m in messages if m.headers is not None]
    most = 4 * sum([len(name) + len(text) for each in headers for name, text in each.items()])
    if most <= MOST_BYTES:
        return most
    return sum(
        len(name.encode(errors="surrogatepass")) + len(text.encode(errors="surrogatepass"))
        for each in headers
        for name, text in each.items()
    )


def _too_large(name: str, size: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {name!r} must hold at most {MOST_BYTES} bytes in one call, got {size}. Pass fewer messages"
    )


def from_arrow(batch: pa.RecordBatch | pa.Table) -> list[Message]:
    """Convert columns to messages; a column that is missing reads as None, a missing payload as no bytes."""
    count = batch.num_rows
    names = set(batch.schema.names)

    def column(name: str, filler: object = None) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [filler] * count

    rows = zip(
        column("source"),
        column("stream"),
        column("event_time"),
        column("payload", b""),
        column("publish_time"),
        column("receive_time"),
        column("headers"),
        column("ledger"),
        column("entry"),
        column("index"),
        strict=True,
    )
    return [
        Message.trusted(
            source,
            stream,
            event_time,
            payload,
            publish_time,
            receive_time,
            None if headers is None else dict(headers),
            None if ledger is None else Position(ledger, entry, index),
        )
        for source, stream, event_time, payload, publish_time, receive_time, headers, ledger, entry, index in rows
    ]


def _cast(column: pa.ChunkedArray, field: pa.Field, time_unit: TimeUnit) -> pa.ChunkedArray:
    if field.name in MESSAGE_TIMES:
        column = as_nanoseconds(column, field.name, time_unit)
    elif field.type == pa.string() and not _is_text(column.type):
        # Arrow would write 7.0 and true, which no producer used as a name.
        raise SchemaError(f"column {field.name!r} must hold strings or dictionary-encoded strings, got {column.type}")
    elif pa.types.is_map(field.type) and pa.types.is_map(column.type):
        for what, kind in ("keys", column.type.key_type), ("values", column.type.item_type):
            if not _is_text(kind):
                raise SchemaError(f"column {field.name!r} must have {what} of type string, got {kind}")
    elif pa.types.is_map(field.type) and pa.types.is_struct(column.type):
        column = _as_map(column, field)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaError(f"cannot convert column {field.name!r} to {field.type}: {error}") from error


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert categories that are views, as those of Polars, which Arrow cannot look up."""
    kind = column.type
    if not (pa.types.is_dictionary(kind) and kind.value_type in (pa.string_view(), pa.binary_view())):
        return column
    plain = pa.string() if kind.value_type == pa.string_view() else pa.binary()
    chunks = [pa.DictionaryArray.from_arrays(each.indices, each.dictionary.cast(plain)) for each in column.chunks]
    return pa.chunked_array(chunks, pa.dictionary(kind.index_type, plain))


def _as_map(dicts: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Convert what pandas makes of dicts: a field for each key of any row, null in rows without that key."""
    for each in dicts.type:
        if not _is_text(each.type):
            raise SchemaError(f"column {field.name!r} must hold strings, got {each.type} for {each.name!r}")
    rows = (None if row is None else [pair for pair in row.items() if pair[1] is not None] for row in dicts.to_pylist())
    return pa.chunked_array([pa.array(rows, field.type)])


def _is_text(given: pa.DataType) -> bool:
    """Return whether Arrow casts a type to string without formatting its values. Bytes must then be UTF-8."""
    if pa.types.is_dictionary(given):
        return _is_text(given.value_type)
    if isinstance(given, pa.BaseExtensionType):
        return pa.types.is_string(given.storage_type)  # arrow.json is text; the bytes of arrow.uuid are not
    return given in _TEXTS or pa.types.is_fixed_size_binary(given) or pa.types.is_null(given)


def as_message_columns(table: pa.Table | pa.RecordBatch, time_unit: TimeUnit = "ns") -> pa.Table:
    """Convert a user's table to `MESSAGE_SCHEMA`: order and cast its columns, and fill in optional ones.

    Times are whole numbers of ``time_unit``, or timestamps of any unit with a time zone (`as_nanoseconds`).

    Raises `SchemaError` if source, stream or event_time is missing, a column cannot be cast, or times have no time
    zone. Raises `InvalidArgumentError` for a null source, stream or event_time, an empty source or stream, a header
    value that is not text, a time that does not fit, bytes that are not UTF-8, and other invalid Arrow data.
    """
    given = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    arrays: list[pa.ChunkedArray] = []
    for field in MESSAGE_SCHEMA:
        if field.name not in given.schema.names:
            if field.name in ("source", "stream", "event_time"):
                raise SchemaError(f"no column named {field.name!r}; the columns are {given.schema.names}")
            arrays.append(_absent(field, given.num_rows))
            continue
        if given.schema.names.count(field.name) > 1:
            raise SchemaError(f"column names must be unique, got {field.name!r} twice in {given.schema.names}")
        column = _sound(given.column(field.name), field.name)
        column = _cast(_without_views(column), field, time_unit)
        if not field.nullable and column.null_count:
            raise InvalidArgumentError(
                f"column {field.name!r} must not hold nulls, got {counted(column.null_count, 'null')}"
            )
        if field.name in ("source", "stream") and pc.call_function("equal", [column, ""]).to_numpy().any():
            raise InvalidArgumentError(f"column {field.name!r} must not hold empty strings")
        if field.name == "headers" and any(map(_holds_null_value, column.chunks)):
            raise InvalidArgumentError("header values in column 'headers' must be strings, got a null")
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def _holds_null_value(headers: pa.MapArray) -> bool:
    if not headers.items.null_count:
        return False
    first, last = headers.offsets[0].as_py(), headers.offsets[-1].as_py()  # for a slice, the values of its rows
    return bool(headers.items.slice(first, last - first).null_count)


def _sound(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Refuse columns that would harm every reader: invalid UTF-8, or an offset outside the column's bytes."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"column {name!r} must be valid Arrow data: {error}") from error
    return column


def _absent(field: pa.Field, count: int) -> pa.ChunkedArray:
    filler = pa.repeat(pa.scalar(b"", pa.binary()), count) if field.name == "payload" else pa.nulls(count, field.type)
    return pa.chunked_array([filler])


def to_ipc(batch: pa.RecordBatch, *others: pa.RecordBatch) -> bytes:
    """Write record batches of one schema as one Arrow IPC stream, compressed if that pays."""
    sink = pa.BufferOutputStream()
    # The size as it is written, because the size in memory depends on how the columns were built, and equal batches
    # must have equal bytes.
    size = pa.ipc.get_record_batch_size(batch)
    options = _COMPRESSED if others or size >= WORTH_COMPRESSING else _UNCOMPRESSED
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for each in (batch, *others):
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def is_ipc(data: bytes | memoryview) -> bool:
    """Return whether bytes begin as an Arrow IPC stream does."""
    return data[: len(_STREAM)] == _STREAM


def from_ipc(data: bytes | memoryview) -> pa.RecordBatch:
    """Read back the one record batch that `to_ipc` wrote; the errors are those of `batches_from_ipc`."""
    batch, *others = batches_from_ipc(data)
    if others:
        raise DamagedError(f"Arrow IPC stream of {len(data)} bytes is corrupt: it has bytes after its end")
    return batch


def batches_from_ipc(data: bytes | memoryview) -> list[pa.RecordBatch]:
    """Read back the output of `to_ipc`, at least one record batch, and refuse data that could crash its users.

    Raises `SchemaError` if the bytes are not an Arrow IPC stream. Raises `DamagedError` if they begin as one, but do
    not hold complete and valid record batches.
    """
    if not is_ipc(data):
        raise SchemaError(f"cannot read {len(data)} bytes: they are not an Arrow IPC stream of messages")
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        with pa.ipc.open_stream(source) as reader:
            batches = [reader.read_next_batch(), *reader]
            for batch in batches:
                # An offset or a length that leads outside the buffers would end the process at its first use.
                batch.validate(full=True)
            ended = source.tell() == source.size()
    except (pa.ArrowException, OSError, StopIteration, MemoryError, ValueError) as error:
        raise DamagedError(f"Arrow IPC stream of {len(data)} bytes is corrupt: {error!r}") from error
    if not ended:
        raise DamagedError(f"Arrow IPC stream of {len(data)} bytes is corrupt: it has bytes after its end")
    return batches


def check_messages(batch: pa.RecordBatch) -> None:
    """Raise a `SchemaError` if a batch has other columns than `POSITIONED_SCHEMA`."""
    if not batch.schema.equals(POSITIONED_SCHEMA):
        raise SchemaError(
            f"cannot read messages: their columns {batch.schema.names} are unknown to this version of Waterclock. If a"
            " newer version wrote the messages, update waterclock"
        )
