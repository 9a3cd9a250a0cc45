"""Purging by partition ("Usage of partitions for efficient purging"): acked messages lie in one partition a day (UTC).

Messages that are not acked lie together in a partition of their own, and an ack moves its row to that of the day. A row
whose day has no partition goes to one for all such, so that an ack never fails for want of a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from waterclock.tables.model.options import IdType

DAY = 86_400_000_000_000
"""ns."""

DAYS_AHEAD = 7
"""For how many days from today there are partitions."""

LONGEST_NAME = 40
"""Characters that a table's name may have, because those of its partitions and their indexes begin with it."""


class Gone(NamedTuple):
    """What went with a partition: how many messages, and how often they were sent together."""

    messages: int
    sent: int


class Days(Protocol):
    """One database's partitions of a message table."""

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Make the SQL table with its partitions but for those of the days."""
        ...

    def known(self, connection: sa.Connection, name: str) -> list[int]:
        """List the days since the epoch that have partitions."""
        ...

    def add(self, connection: sa.Connection, name: str, days: Sequence[int]) -> None:
        """Make partitions for days; fails soon where others keep the table locked."""
        ...

    def drop_day(self, connection: sa.Connection, name: str, day: int) -> Gone:
        """Drop a day's partition, and say what it had; fails soon where others keep the table locked."""
        ...

    def undated(self, rows: sa.Table) -> sa.Select[Any, Any, Any]:
        """Select seq, time_acked and epoch of the acked messages whose day has no partition."""
        ...


def days_to_add(known: Collection[int], now: int) -> list[int]:
    """Say which days are to get partitions at ``now``, ns."""
    today = now // DAY
    # A day before the last one cannot be added on every database; its messages lie with those of no day.
    first = max([today, *(day + 1 for day in known)])
    return list(range(first, today + DAYS_AHEAD + 1))


def days_to_drop(known: Collection[int], now: int, purge_after: int | None) -> list[int]:
    """Say which days hold nothing but messages that were acked ``purge_after`` ns ago or earlier."""
    if purge_after is None:
        return []
    return sorted(day for day in known if (day + 1) * DAY <= now - purge_after)
