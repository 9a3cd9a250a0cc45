"""Drawing numbers for messages that were given none, where no database could number them alone."""

from __future__ import annotations

import secrets
import time
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
