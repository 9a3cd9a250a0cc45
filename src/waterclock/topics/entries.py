"""The entry: the messages of one append, as the bytes that a row of the catalogue holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.arrow import MESSAGE_SCHEMA, as_message_columns, to_arrow, to_ipc
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.message import Message
from waterclock.topics.bounds import Bounds

PLACED_SCHEMA = pa.schema(
    [*MESSAGE_SCHEMA, pa.field("entry", pa.int64(), nullable=False), pa.field("index", pa.int32(), nullable=False)]
)
"""The columns of a message, and its place in its ledger."""


_ARROW = b"WCA1"
"""The form of an entry: a frame (`waterclock.checksum`) around an Arrow IPC stream."""

_UNFRAMED = b"\xff\xff\xff\xff"
"""How the entries of earlier versions begin: an Arrow IPC stream without a frame, hence without a checksum."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One append, encoded: its bytes, how many messages they hold, and the bounds of their times."""

    data: bytes
    messages: int
    bounds: Bounds


def encode_entry(messages: Iterable[Message] | pa.Table | pa.RecordBatch, now: Callable[[], int]) -> Entry:
    """Encode and compress the messages of one append.

    Parameters
    ----------
    messages
        Messages, or a table with their columns.
    now
        Fills in publish_time and receive_time where they are None. Called at most once.

    Raises
    ------
    InvalidArgumentError
        Where there is no message, or something that is not a message.
    SchemaError
        Where a table lacks a column.
    """
    batch = _filled(_one_batch(messages), now)
    return Entry(framed(_ARROW, to_ipc(batch)), batch.num_rows, Bounds.of_messages(batch))


def decode_entries(ledger: int, rows: Iterable[tuple[int, bytes]], columns: Collection[str]) -> pa.RecordBatch:
    """Check and decode some entries to `PLACED_SCHEMA` without the columns that are not wanted.

    Parameters
    ----------
    ledger
        Their ledger, for the error.
    rows
        The entries, given as (number, bytes).
    columns
        Names out of `MESSAGE_SCHEMA`; what is not wanted is not decompressed.

    Raises
    ------
    DamagedError
        Where an entry is not what was written; it names ledger and entry.
    """
    wanted = [field for field in MESSAGE_SCHEMA if field.name in columns]
    parts = [(entry, _decode(ledger, entry, data, [field.name for field in wanted])) for entry, data in rows]
    counts = [part.num_rows for _, part in parts]
    batch = pa.concat_batches([part for _, part in parts])
    entry = np.repeat(np.array([entry for entry, _ in parts], dtype=np.int64), counts)
    index = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    schema = pa.schema([*wanted, PLACED_SCHEMA.field("entry"), PLACED_SCHEMA.field("index")])
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(entry), pa.array(index)], schema=schema)


def _decode(ledger: int, entry: int, data: bytes, columns: list[str]) -> pa.RecordBatch:
    name = f"entry {entry} of ledger {ledger}"
    # Columns that are left out are not even decompressed. Asking for none would read all of them.
    indices = [MESSAGE_SCHEMA.get_field_index(name) for name in columns or ["event_time"]]
    options = pa.ipc.IpcReadOptions(included_fields=indices)
    try:
        body = data if has_form(_UNFRAMED, data) else unframed(_ARROW, data, name)
        with pa.ipc.open_stream(pa.py_buffer(body), options=options) as reader:
            batch = reader.read_next_batch()
        if body is data:
            _refuse_unlike(batch, indices)
        return batch.select(columns)
    except DamagedError as error:
        raise DamagedError(str(error), ledger=ledger, entry=entry) from None
    except (pa.ArrowException, OSError, StopIteration, KeyError, ValueError) as error:  # names, too, may be no UTF-8
        raise DamagedError(
            f"{name} is damaged: its {len(data)} bytes are not an Arrow IPC stream of messages: {error}",
            ledger=ledger,
            entry=entry,
        ) from None


def _refuse_unlike(batch: pa.RecordBatch, indices: list[int]) -> None:
    """Validate what no checksum guards: its values, and that its columns are those of messages."""
    batch.validate(full=True)
    wanted = [MESSAGE_SCHEMA.field(index) for index in sorted(indices)]
    if [(field.name, field.type) for field in batch.schema] != [(field.name, field.type) for field in wanted]:
        raise pa.ArrowInvalid(f"it has the columns {', '.join(map(str, batch.schema))}")
    if any(batch.column(field.name).null_count for field in wanted if not field.nullable):
        raise pa.ArrowInvalid("it has nulls where every message has a value")


def _one_batch(messages: Iterable[Message] | pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    if not isinstance(messages, pa.Table | pa.RecordBatch):
        if not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody checks types
            raise InvalidArgumentError(
                f"messages: {messages!r} is a {type(messages).__name__}; give a list of messages"
            )
        listed = list[object](messages)
        for message in listed:
            if not isinstance(message, Message):
                raise InvalidArgumentError(
                    f"messages: {message!r} is a {type(message).__name__}; give Message objects or a pyarrow.Table"
                )
        batch = to_arrow(cast("list[Message]", listed))
    else:
        batches = as_message_columns(messages).combine_chunks().to_batches()
        if len(batches) > 1:
            raise InvalidArgumentError("messages: the table's texts or payloads exceed 2 GB; append it in pieces")
        batch = batches[0] if batches else to_arrow([])
    if batch.num_rows == 0:
        raise InvalidArgumentError("messages: there is none; append at least one")
    return batch


def _filled(batch: pa.RecordBatch, now: Callable[[], int]) -> pa.RecordBatch:
    empty = [name for name in ("publish_time", "receive_time") if batch.column(name).null_count]
    if not empty:
        return batch
    time = pa.scalar(now(), pa.int64())
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns.update((name, pc.call_function("coalesce", [columns[name], time])) for name in empty)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
