"""A message from a broker, and the connection that must ack it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from waterclock.ingest.mapping.format_rule import Published


class Origin(Protocol):
    """The connection that delivered a message."""

    @property
    def session(self) -> str:
        """Name of the session."""
        ...

    @property
    def number(self) -> int:
        """Number of the connection in its session; later ones have larger numbers."""
        ...

    @property
    def session_present(self) -> bool:
        """Whether the broker still had the session when the connection was made."""
        ...

    def ack(self, packet_ids: Iterable[int]) -> None:
        """Ack messages that this connection delivered; do nothing if it is closed."""
        ...


class Received(NamedTuple):
    """A message as a broker delivered it."""

    published: Published  # topic, payload, and whether it is retained
    origin: Origin  # the connection that delivered it
    packet_id: int = 0  # its number on that connection
    qos: int = 0  # 0 or 1
    is_repeat: bool = False  # whether the broker marks it as possibly delivered before (DUP)

    @property
    def size(self) -> int:
        """Approximate bytes that it takes."""
        return len(self.published.topic) + len(self.published.payload)

    def digest(self) -> bytes:
        """Return a hash of its topic and payload."""
        topic, payload, _ = self.published
        return content_hash(topic, payload)


HASH_BYTES = 8
"""Bytes of a content hash: for each packet id there are 2⁶⁴ values, so two contents collide once in 10¹⁹ repeats."""


def content_hash(topic: str | bytes, payload: bytes) -> bytes:
    name = topic if isinstance(topic, bytes) else topic.encode(errors="surrogatepass")
    return hashlib.blake2b(payload, digest_size=HASH_BYTES, key=hashlib.blake2b(name, digest_size=32).digest()).digest()
