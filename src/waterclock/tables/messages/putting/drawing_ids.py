"""Drawing ids for messages that were given none, where no database numbers them, or not where they belong."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Container

from waterclock.tables.model.keyspace import KeyRange, keyspace_id

RANDOM_BITS = 21
"""How many of a drawn id's low bits are random."""


def draw_id(where: KeyRange | None, taken: Container[int]) -> int:
    """Draw a 63-bit id: the time in ns, to about 2 ms, with the last 21 bits random. So ids sort by time, roughly.

    The caller has to check whether another one has drawn it: within 2 ms that is one chance in two million.

    Parameters
    ----------
    where
        The key range to which the id has to map; None: any.
    taken
        Ids that must not come out.
    """
    while True:
        drawn = (time.time_ns() >> RANDOM_BITS << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)
        if drawn not in taken and (where is None or keyspace_id(drawn) in where):
            return drawn


def draw_uuid(where: KeyRange | None = None) -> uuid.UUID:
    """Draw a UUID, version 7, that maps to a key range; None: any."""
    while True:
        # RFC 9562, section 5.7: milliseconds first, so that ids made later sort later and stay together in an index.
        milliseconds = time.time_ns() // 1_000_000
        random = secrets.randbits(74)
        low = 0b10 << 62 | random & (1 << 62) - 1
        drawn = uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | low)
        if where is None or keyspace_id(drawn) in where:
            return drawn
