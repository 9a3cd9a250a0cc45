"""Remembers appended messages that the broker may deliver again because it has not seen their acks. Does no I/O.

A broker delivers a message again after a reconnect if it has not seen the ack. Such a repeat is dropped only if three
conditions hold: the broker marks it as a repeat, the broker still had the session, and packet id and content match an
appended message. If any condition fails, the message is appended again: twice is better than not at all.

Packet ids identify messages only if the broker increments them, as Mosquitto does. A broker that reuses an id as soon
as it is acked may deliver a new message with the id and content of an appended one. After such a reuse, no message is
dropped.
"""

from __future__ import annotations

import struct
from typing import Self

from waterclock.errors import DamagedError
from waterclock.ingest.storing.received import HASH_BYTES, Received

_ROW = struct.Struct(f">H{HASH_BYTES}s")

_IDS_REUSED = 0
"""Stored like a packet id, which is never 0, if ids of remembered messages were reused.

It is forgotten like them, since a broker also reuses ids after it was restored from an older state.
"""


class Evidence:
    """The messages of one session that were appended last, by packet id.

    Parameters
    ----------
    most
        How many are remembered: the broker's maximum in flight, because acks of older ones have arrived.
    """

    def __init__(self, most: int) -> None:
        self._most = most + 1  # with room for the note that ids were reused
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._digests)

    @classmethod
    def unpack(cls, data: bytes, most: int) -> Self:
        """Read what `pack` wrote."""
        if len(data) % _ROW.size:
            raise DamagedError(f"the record of unacked messages of an ingest session is corrupt: {len(data)} bytes")
        evidence = cls(most)
        for packet_id, digest in _ROW.iter_unpack(data):
            evidence._digests[packet_id] = digest
        return evidence

    def pack(self) -> bytes:
        """Encode the evidence, oldest first."""
        return b"".join(_ROW.pack(packet_id, digest) for packet_id, digest in self._digests.items())

    def copy(self) -> Evidence:
        """Copy it, so that a failed transaction leaves it unchanged."""
        other = Evidence(self._most - 1)
        other._digests = dict(self._digests)
        return other

    def clear(self) -> None:
        """Forget all, because the broker has forgotten the session."""
        self._digests.clear()

    def holds(self, received: Received) -> bool:
        """Return whether a message was appended before."""
        if not (received.is_repeat and received.origin.session_present) or _IDS_REUSED in self._digests:
            return False
        return self._digests.get(received.packet_id) == received.digest()

    def note(self, received: Received) -> None:
        """Note that a message is appended."""
        if self._digests.pop(received.packet_id, None) is not None:
            self._digests.pop(_IDS_REUSED, None)
            self._digests[_IDS_REUSED] = bytes(HASH_BYTES)
        self._digests[received.packet_id] = received.digest()
        while len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]
