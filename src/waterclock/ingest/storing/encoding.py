"""Encodes messages as one entry, or as several if a single entry might exceed the database's limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waterclock.message import Message
from waterclock.topics.format.entries import Entry, encode_entry
from waterclock.topics.model.clock_skew_limit import AheadLimit

_BYTES_PER_ROW = 64
"""Bytes of a message in an entry without its texts and payload: three times, four offsets, validity."""

_BYTES_OF_CHARACTER = 4  # in UTF-8, maximum


def encode_in_pieces(
    messages: Sequence[Message], received: int, most: int, limit: AheadLimit | None = None
) -> Iterator[Entry]:
    """Encode messages as entries of at most about this many bytes.

    Parameters
    ----------
    received
        Replaces missing publish and receive times.
    limit
        How far ahead times may be; None if they come from the database's own clock.
    """
    chunk: list[Message] = []
    size = 0
    for message in messages:
        own = _bytes_of(message)
        if chunk and size + own > most:
            yield encode_entry(chunk, lambda: received, limit)
            chunk, size = [], 0
        chunk.append(message)
        size += own
    yield encode_entry(chunk, lambda: received, limit)


def _bytes_of(message: Message) -> int:
    """Return the bytes that a message takes in an entry, at most."""
    texts = len(message.source) + len(message.stream)
    texts += sum(len(name) + len(value) for name, value in (message.headers or {}).items())
    return _BYTES_PER_ROW + len(message.payload) + _BYTES_OF_CHARACTER * texts
