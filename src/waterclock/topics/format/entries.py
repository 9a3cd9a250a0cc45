"""Encodes and decodes an entry: the messages of one append, as bytes in a row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.arrow import MESSAGE_SCHEMA, as_message_columns, from_arrow, to_arrow, to_ipc
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.frames import as_messages
from waterclock.message import Message
from waterclock.topics.format import packed_entries
from waterclock.topics.format.content_checksum import checksum_of_columns, checksum_of_messages, pairs_of_headers
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.clock_skew_limit import AheadLimit, ClockTimes, Rejected
from waterclock.topics.model.producer_state import Verdict

PLACED_SCHEMA = pa.schema(
    [*MESSAGE_SCHEMA, pa.field("entry", pa.int64(), nullable=False), pa.field("index", pa.int32(), nullable=False)]
)
"""The columns of a message, and its position in its ledger."""


_ARROW = b"WCA1"
"""The form of an entry of many messages: a frame (`waterclock.checksum`) around an Arrow IPC stream."""

_LOST = b"WCL1"
"""The form of a lost entry: an empty frame. Its row says how many messages it held."""

DECODED_BYTES = 256 << 20
"""Bytes of columns that are decoded at once; a single entry may be larger.

Entries are read by their compressed size, which does not limit this one: 16 MiB of zeros compress to 1.5 kB. Arrow
joins no more than 2 GiB into one column.
"""

_FEW = 64
"""For up to this many messages, columns are slower."""

_LEAST_OF_ARROW = 1200
"""Bytes that Arrow needs for a schema and one message: a smaller packed entry is not compared with it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One append, encoded."""

    # Its bytes, how many messages they hold, and the bounds of their times; empty bytes if every message was
    # rejected.
    data: bytes
    messages: int
    bounds: Bounds
    given: int  # how many messages were passed
    checksum: int = 0  # checksum of their contents (`waterclock.topics.format.content_checksum`); 0 if not requested
    rejected: tuple[Rejected, ...] = ()  # the messages that were passed and are not in the entry
    # The times of all passed messages, so that a repeat is judged as it was the first time; None if the topic has no
    # limit and no checksum was requested.
    times: ClockTimes | None = None
    verdict: Verdict | None = None  # how they were judged; None if all were accepted


class Decoded(NamedTuple):
    """The messages of the first of some entries, and how many entries these are."""

    batch: pa.RecordBatch
    entries: int


def encode_entry(
    messages: object,  # in any form that `as_messages` takes
    now: Callable[[], int],  # Fills in missing publish and receive times. Called at most once.
    limit: AheadLimit | None = None,  # how far ahead of ``now`` messages may be
    *,
    with_checksum: bool = False,  # whether to compute the checksum of the messages' contents
) -> Entry:
    """Encode the messages of one append: packed if they are few and small, otherwise as compressed columns.

    Raises `InvalidArgumentError` if the messages are empty, or of another type. Raises `SchemaError` if a table lacks a
    column.
    """
    given = _checked(messages)
    clock = cache(now)
    try:
        checksum = _checksum(given) if with_checksum else 0
        times = None if limit is None and not with_checksum else _times(given)
        if limit is None or times is None:
            return replace(_encoded(given, clock, len(given), checksum), times=times)
        rejected = limit.rejected(times, clock) if times.any_given else ()
        left = _without(given, {each.index for each in rejected})
        verdict = Verdict(clock(), limit.max_ahead, len(rejected)) if rejected else None
        if not len(left):
            return Entry(b"", 0, Bounds({}, {}), len(given), checksum, rejected, times, verdict)
        entry = _encoded(left, clock, len(given), checksum)
        return replace(entry, rejected=rejected, times=times, verdict=verdict)
    except UnicodeError as error:
        raise InvalidArgumentError(f"messages must be valid Unicode, got a lone surrogate: {error}") from None


def _encoded(messages: list[Message] | pa.RecordBatch, now: Callable[[], int], given: int, checksum: int) -> Entry:
    few = _as_few(messages)
    if few is not None:
        return _of_few(few, now, given, checksum)
    return _of_many(messages if isinstance(messages, pa.RecordBatch) else to_arrow(messages), now, given, checksum)


def _checksum(given: list[Message] | pa.RecordBatch) -> int:
    few = _as_few(given)
    if few is not None:
        return checksum_of_messages(few)
    return checksum_of_columns(given if isinstance(given, pa.RecordBatch) else to_arrow(given))


def _times(given: list[Message] | pa.RecordBatch) -> ClockTimes:
    if isinstance(given, list):
        columns = ([message.publish_time for message in given], [message.receive_time for message in given])
        return ClockTimes(*(pa.array(column, pa.int64()) for column in columns))
    return ClockTimes(given.column("publish_time"), given.column("receive_time"))


def _without(given: list[Message] | pa.RecordBatch, out: Collection[int]) -> list[Message] | pa.RecordBatch:
    if not out:
        return given
    if isinstance(given, list):
        return [message for index, message in enumerate(given) if index not in out]
    return given.take(pa.array([index for index in range(given.num_rows) if index not in out], pa.int64()))


def decode_entries(ledger: int, rows: Sequence[tuple[int, bytes]], columns: Collection[str]) -> Decoded:
    """Check and decode the wanted columns of entries to `PLACED_SCHEMA`.

    Entries are decoded from the first on, until they exceed `DECODED_BYTES`.

    Raises `DamagedError` if an entry is corrupt; it names ledger and entry.

    Parameters
    ----------
    ledger
        Their ledger, for the error.
    rows
        The entries, given as (number, bytes). One that is recorded as lost has no messages.
    columns
        Names out of `MESSAGE_SCHEMA`; other columns are not decompressed.
    """
    wanted = [field for field in MESSAGE_SCHEMA if field.name in columns]
    unpacked = _unpack_all(ledger, [row for row in rows if has_form(packed_entries.FORM, row[1])], columns)
    parts: list[Sequence[pa.Array]] = []
    counts: list[int] = []
    size = 0
    for is_packed, run in groupby(rows, lambda row: has_form(packed_entries.FORM, row[1])):
        if size > DECODED_BYTES:
            break
        if is_packed:
            arrays, held = unpacked.take(sum(1 for _ in run))
            parts.append(arrays)
            counts += held
            continue
        for entry, data in run:
            batch = _decode(ledger, entry, data, wanted)
            if batch is not None and size and size + batch.nbytes > DECODED_BYTES:
                size += batch.nbytes
                break
            counts.append(0 if batch is None else batch.num_rows)
            if batch is not None:
                parts.append(batch.columns)
                size += batch.nbytes
    arrays = [
        pa.concat_arrays([part[place] for part in parts]) if parts else pa.array([], field.type)
        for place, field in enumerate(wanted)
    ]
    lengths = np.array(counts, dtype=np.int64)
    entry = np.repeat(np.array([entry for entry, _ in rows[: len(counts)]], dtype=np.int64), lengths)
    index = (np.arange(len(entry)) - np.repeat(np.cumsum(lengths) - lengths, lengths)).astype(np.int32)
    schema = pa.schema([*wanted, PLACED_SCHEMA.field("entry"), PLACED_SCHEMA.field("index")])
    batch = pa.RecordBatch.from_arrays([*arrays, pa.array(entry), pa.array(index)], schema=schema)
    return Decoded(batch, len(counts))


class _UnpackedMessages:
    """The packed entries among some entries, all unpacked at once; taken from the front."""

    def __init__(self, columns: Sequence[pa.Array], counts: Sequence[int]) -> None:
        self._columns = columns
        self._counts = counts
        self._entries = self._messages = 0

    def take(self, entries: int) -> tuple[list[pa.Array], list[int]]:
        """Take the next entries: their columns, and how many messages each has."""
        counts = list(self._counts[self._entries : self._entries + entries])
        messages = sum(counts)
        columns = [column.slice(self._messages, messages) for column in self._columns]
        self._entries += entries
        self._messages += messages
        return columns, counts


def _unpack_all(ledger: int, rows: Sequence[tuple[int, bytes]], columns: Collection[str]) -> _UnpackedMessages:
    pieces = [
        packed_entries.unpack(ledger, rows[first : first + packed_entries.AT_ONCE], columns)
        for first in range(0, len(rows), packed_entries.AT_ONCE)
    ]
    arrays = [pa.concat_arrays(column) for column in zip(*(piece.columns for piece in pieces), strict=True)]
    return _UnpackedMessages(arrays, [count for piece in pieces for count in piece.counts.tolist()])


def _decode(ledger: int, entry: int, data: bytes, wanted: Sequence[pa.Field]) -> pa.RecordBatch | None:
    """Check and decode one entry of columns; None if it is recorded as lost."""
    name = f"entry {entry} of ledger {ledger}"
    try:
        if has_form(_LOST, data):
            unframed(_LOST, data, name)
            return None
        return _of_stream(unframed(_ARROW, data, name), wanted)
    except DamagedError as error:
        raise DamagedError(str(error), ledger=ledger, entry=entry) from None
    except (pa.ArrowException, OSError, StopIteration, LookupError, ValueError, TypeError) as error:
        raise DamagedError(
            f"{name} is corrupt: its {len(data)} bytes are not an Arrow IPC stream of messages: {error}",
            ledger=ledger,
            entry=entry,
        ) from error


def _of_stream(data: memoryview, wanted: Sequence[pa.Field]) -> pa.RecordBatch:
    # Omitted columns are not even decompressed. An empty list would read all of them.
    fields = wanted or [MESSAGE_SCHEMA.field("event_time")]
    indices = [MESSAGE_SCHEMA.get_field_index(field.name) for field in fields]
    options = pa.ipc.IpcReadOptions(included_fields=indices)
    with pa.ipc.open_stream(pa.py_buffer(data), options=options) as reader:
        batch = reader.read_next_batch()
    if batch.schema != pa.schema(fields):
        raise ValueError(f"expected the columns of messages, got {batch.schema.names}")
    return batch


def _as_few(given: list[Message] | pa.RecordBatch) -> list[Message] | None:
    """Return the messages as objects, if they are few and this loses no data."""
    if isinstance(given, list):
        return given if len(given) <= _FEW else None
    if given.num_rows > _FEW:
        return None
    messages = from_arrow(given)
    if given.column("headers").null_count < given.num_rows:
        # A table may hold the same header twice, or one without a value.
        pairs = pairs_of_headers(given)
        if pairs.field(1).null_count or len(pairs) > sum(len(message.headers or ()) for message in messages):
            return None
    return messages


def _of_few(messages: Sequence[Message], now: Callable[[], int], given: int, checksum: int) -> Entry:
    if any(message.publish_time is None or message.receive_time is None for message in messages):
        messages = _filled_one_by_one(messages, now())
    data = packed_entries.pack(messages)
    if data is None or len(data) > _LEAST_OF_ARROW:
        columns = framed(_ARROW, to_ipc(to_arrow(messages)))
        data = columns if data is None or len(columns) < len(data) else data
    return Entry(data, len(messages), Bounds.of_few(messages), given, checksum)


def _of_many(batch: pa.RecordBatch, now: Callable[[], int], given: int, checksum: int) -> Entry:
    filled = _filled(batch, now)
    data = framed(_ARROW, to_ipc(filled))
    return Entry(data, filled.num_rows, Bounds.of_messages(filled), given, checksum)


def _filled_one_by_one(messages: Sequence[Message], time: int) -> list[Message]:
    return [
        Message.trusted(
            message.source,
            message.stream,
            message.event_time,
            message.payload,
            time if message.publish_time is None else message.publish_time,
            time if message.receive_time is None else message.receive_time,
            message.headers,
            None,
        )
        for message in messages
    ]


def _checked(given: object) -> list[Message] | pa.RecordBatch:
    """Return at least one message, as a list or as one batch of `MESSAGE_SCHEMA`."""
    if isinstance(given, list) and all(isinstance(each, Message) for each in cast("list[object]", given)):
        messages: list[Message] | pa.Table = list(cast("list[Message]", given))
    else:
        messages = as_messages(given)
    if isinstance(messages, list):
        if not messages:
            raise _none()
        return messages
    batches = as_message_columns(messages).combine_chunks().to_batches()
    if len(batches) > 1:
        raise InvalidArgumentError(
            "messages must hold at most 2 GB of text and 2 GB of payloads. Append the table in pieces"
        )
    if not batches or not batches[0].num_rows:
        raise _none()
    return batches[0]


def _none() -> InvalidArgumentError:
    return InvalidArgumentError("messages must not be empty")


def _filled(batch: pa.RecordBatch, now: Callable[[], int]) -> pa.RecordBatch:
    empty = [name for name in ("publish_time", "receive_time") if batch.column(name).null_count]
    if not empty:
        return batch
    time = pa.scalar(now(), pa.int64())
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns.update((name, pc.call_function("coalesce", [columns[name], time])) for name in empty)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
