"""Generates ids for messages without an id, if the database does not or must not assign ids."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Container

from waterclock.tables.model.keyspace import KeyRange, keyspace_id

RANDOM_BITS = 21  # number of random low bits in a drawn id


def draw_id(where: KeyRange | None, taken: Container[int]) -> int:
    """Draw a 63-bit id: the time in ns, to about 2 ms, with the last 21 bits random. Ids sort roughly by time.

    The caller must check for collisions: within 2 ms the chance is one in two million.

    ``where`` is the key range to which the id must map; None: any. ``taken`` are ids that must not be drawn.
    """
    while True:
        drawn = (time.time_ns() >> RANDOM_BITS << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)
        if drawn not in taken and (where is None or keyspace_id(drawn) in where):
            return drawn


def draw_uuid(where: KeyRange | None = None) -> uuid.UUID:
    """Draw a UUID, version 7, that maps to a key range; None: any."""
    while True:
        # RFC 9562, section 5.7: milliseconds first, so that later ids sort later and stay together in an index.
        milliseconds = time.time_ns() // 1_000_000
        random = secrets.randbits(74)
        low = 0b10 << 62 | random & (1 << 62) - 1
        drawn = uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | low)
        if where is None or keyspace_id(drawn) in where:
            return drawn
