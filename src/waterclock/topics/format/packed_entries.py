"""Packs and unpacks entries of few messages. A packed entry is a tenth the size of an Arrow entry.

An entry begins with the frame (`waterclock.checksum`). These fields follow, with little-endian numbers:

- the number of messages (uint16), and the number of headers of all messages together (uint16);
- for each message: event_time, publish_time, receive_time (int64 each), the lengths of source, stream and payload
  (uint16 each), and the number of its headers (int16; -1: None);
- for each header: the lengths of its key and its value (uint16 each);
- for each message its source, stream and payload, then for each header its key and value.

The format has neither alignment nor a trailer. Many entries are unpacked at once, in a fixed number of numpy steps:
their bytes lie end to end, and Arrow cuts the texts out of them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.checksum import framed, unframed
from waterclock.errors import DamagedError
from waterclock.message import Message

FORM = b"WCR1"
"""The name of the form."""

LARGEST = 4096
"""Maximum bytes of a packed entry; a larger entry is better compressed."""

_HEAD = struct.Struct("<HH")
_HEADER = struct.Struct("<HH")
_MESSAGE = struct.Struct("<qqqHHHh")
_MESSAGE_TYPE = np.dtype(
    [
        ("event_time", "<i8"),
        ("publish_time", "<i8"),
        ("receive_time", "<i8"),
        ("source", "<u2"),
        ("stream", "<u2"),
        ("payload", "<u2"),
        ("headers", "<i2"),
    ]
)
_HEAD_TYPE = np.dtype([("messages", "<u2"), ("headers", "<u2")])
_HEADER_TYPE = np.dtype([("key", "<u2"), ("value", "<u2")])
AT_ONCE = 1 << 16
"""Maximum entries unpacked at once: Arrow counts their bytes with 31 bits."""

_MOST_MESSAGES = LARGEST // _MESSAGE.size
_TEXTS = ("source", "stream", "payload")
_PAIR = ("key", "value")

_Numbers = npt.NDArray[np.int64]


def pack(messages: Sequence[Message]) -> bytes | None:
    """Pack messages with complete times; None if they are too many or too large for this form."""
    if len(messages) > _MOST_MESSAGES:
        return None
    fixed: list[bytes] = []
    lengths: list[bytes] = []
    texts: list[bytes] = []
    later: list[bytes] = []
    size = _HEAD.size + len(messages) * _MESSAGE.size
    for message in messages:
        source, stream, payload = message.source.encode(), message.stream.encode(), message.payload
        size += len(source) + len(stream) + len(payload)
        headers = message.headers
        if size > LARGEST or (headers and len(headers) > LARGEST):
            return None
        for key, value in (headers or {}).items():
            pair = key.encode(), value.encode()
            size += _HEADER.size + len(pair[0]) + len(pair[1])
            if size > LARGEST:
                return None
            lengths.append(_HEADER.pack(len(pair[0]), len(pair[1])))
            later += pair
        times = message.event_time, message.publish_time, message.receive_time
        count = -1 if headers is None else len(headers)
        fixed.append(_MESSAGE.pack(*times, len(source), len(stream), len(payload), count))
        texts += (source, stream, payload)
    head = _HEAD.pack(len(messages), len(lengths))
    return framed(FORM, b"".join([head, *fixed, *lengths, *texts, *later]))


class Unpacked(NamedTuple):
    """Some entries as columns, in order, and how many messages each of them holds."""

    columns: list[pa.Array]
    counts: _Numbers


def unpack(ledger: int, rows: Sequence[tuple[int, bytes]], columns: Collection[str]) -> Unpacked:
    """Check and unpack entries.

    Raises `DamagedError` if an entry differs from its written form; it names ledger and entry.

    Parameters
    ----------
    ledger
        Their ledger, for the error.
    rows
        The entries, at least one and at most `AT_ONCE`, given as (number, bytes).
    columns
        Names out of `MESSAGE_SCHEMA`: the columns to build, in its order.
    """
    layout = _Layout([_checked(ledger, *row) for row in rows])
    if layout.broken is not None:
        raise _damaged(ledger, *rows[layout.broken])
    try:
        arrays = [layout.column(field) for field in MESSAGE_SCHEMA if field.name in columns]
    except pa.ArrowInvalid as error:  # a text is not UTF-8
        if len(rows) > 1:
            for row in rows:
                unpack(ledger, [row], columns)
        raise _damaged(ledger, *rows[0]) from error
    return Unpacked(arrays, layout.messages)


def _checked(ledger: int, entry: int, data: bytes) -> memoryview:
    try:
        body = unframed(FORM, data, f"entry {entry} of ledger {ledger}")
    except DamagedError as error:
        raise DamagedError(str(error), ledger=ledger, entry=entry) from None
    if not _HEAD.size <= len(body) <= LARGEST:
        raise _damaged(ledger, entry, data)
    return body


def _damaged(ledger: int, entry: int, data: bytes) -> DamagedError:
    return DamagedError(
        f"entry {entry} of ledger {ledger} is corrupt: its {len(data)} bytes lack the offsets of its messages",
        ledger=ledger,
        entry=entry,
    )


class _Layout:
    """The offsets of everything in the bytes of some entries, end to end.

    A number that points outside its entry is found before it is used: then ``broken`` is the place of that entry.
    """

    def __init__(self, bodies: Sequence[memoryview]) -> None:
        self._bytes = np.frombuffer(b"".join(bodies), dtype=np.uint8)
        sizes = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
        begins = np.cumsum(sizes) - sizes
        heads = self._records(begins, _HEAD_TYPE)
        self.messages: _Numbers = heads["messages"].astype(np.int64)
        headers = heads["headers"].astype(np.int64)
        messages_at = begins + _HEAD.size
        headers_at = messages_at + self.messages * _MESSAGE.size
        texts_at = headers_at + headers * _HEADER.size
        rest = begins + sizes - texts_at
        self.broken = _first((self.messages == 0) | (rest < 0))
        if self.broken is not None:
            return
        self._message = self._records(_places(messages_at, self.messages, _MESSAGE.size), _MESSAGE_TYPE)
        self._header = self._records(_places(headers_at, headers, _HEADER.size), _HEADER_TYPE)
        sizes_of_texts = np.stack([self._message[name].astype(np.int64) for name in _TEXTS], axis=1)
        sizes_of_pairs = np.stack([self._header[name].astype(np.int64) for name in _PAIR], axis=1)
        has = self._message["headers"].astype(np.int64)
        texts, pairs = sizes_of_texts.sum(axis=1), sizes_of_pairs.sum(axis=1)
        own_texts, own_pairs = _sums(texts, self.messages), _sums(pairs, headers)
        self.broken = _first(
            (own_texts + own_pairs != rest)
            | (_sums(np.maximum(has, 0), self.messages) != headers)
            | (_sums(has < -1, self.messages) > 0)
        )
        self._texts = texts_at, sizes_of_texts, self.messages
        self._pairs = texts_at + own_texts, sizes_of_pairs, headers

    def column(self, field: pa.Field) -> pa.Array:
        """Build a column of `MESSAGE_SCHEMA`; pyarrow.ArrowInvalid if a text is not UTF-8."""
        if field.name == "headers":
            return self._headers()
        if field.name in _TEXTS:
            place = _TEXTS.index(field.name)
            return self._cut(self._text_ends[:, place], self._texts[1][:, place]).cast(field.type)
        return pa.array(np.ascontiguousarray(self._message[field.name]))

    @cached_property
    def _text_ends(self) -> _Numbers:
        return _ends(*self._texts)

    def _headers(self) -> pa.Array:
        has = self._message["headers"]
        offsets = np.zeros(len(has) + 1, dtype=np.int32)
        np.cumsum(np.maximum(has, 0), out=offsets[1:])
        ends, sizes = _ends(*self._pairs), self._pairs[1]
        keys, values = (self._cut(ends[:, place], sizes[:, place]).cast(pa.string()) for place in range(2))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values, mask=pa.array(has == -1))

    def _cut(self, ends: _Numbers, sizes: _Numbers) -> pa.Array:
        """Cut out the pieces from a sequence in which pieces and gaps alternate."""
        if not len(ends):
            return pa.array([], pa.binary())
        offsets = np.empty(2 * len(ends), dtype=np.int32)
        offsets[0::2], offsets[1::2] = ends - sizes, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._bytes)]
        both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return both.take(pa.array(np.arange(0, len(both), 2)))

    def _records(self, begins: _Numbers, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Read a record of numbers at each of these offsets."""
        if not len(begins):
            return np.empty(0, dtype=kind)
        shape = (len(self._bytes) - kind.itemsize + 1, kind.itemsize)
        windows = np.ndarray(shape, np.uint8, self._bytes, strides=(1, 1))
        return windows[begins].view(kind)[:, 0]


def _first(found: npt.NDArray[np.bool_]) -> int | None:
    return int(np.argmax(found)) if found.any() else None


def _places(begins: _Numbers, counts: _Numbers, size: int) -> _Numbers:
    """Return the offsets of consecutive records: from each of some starts, as many as its count."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before * size, counts) + np.arange(int(counts.sum())) * size


def _sums(values: npt.NDArray[Any], counts: _Numbers) -> _Numbers:
    """Add up the values of each entry."""
    ends = np.cumsum(counts)
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return total[ends] - total[ends - counts]


def _ends(begins: _Numbers, sizes: _Numbers, counts: _Numbers) -> _Numbers:
    """Return the ends of consecutive pieces: from each of some starts, as many rows as its count."""
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    before = np.concatenate([[0], ends[:, -1]])[np.cumsum(counts) - counts]
    return ends + np.repeat(begins - before, counts)[:, None]
