"""Partitions by day, for efficient purging: one partition of acked messages per day (UTC).

Unacked messages have a partition of their own, and an ack moves the row to the partition of the ack's day. Rows whose
day has no partition share a default partition, so that an ack never fails because a partition is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from waterclock.tables.model.options import IdType

DAY = 86_400_000_000_000  # nanoseconds in a day
DAYS_AHEAD = 7  # for how many days from today there are partitions
LONGEST_NAME = 40  # maximum length of a table's name, because the names of its partitions and indexes begin with it


class Gone(NamedTuple):
    """Totals of a dropped partition: its messages, and how often they were sent."""

    messages: int
    sent: int


class Days(Protocol):
    """One database's partitions of a message table."""

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the SQL table with its partitions, except those of days."""
        ...

    def known(self, connection: sa.Connection, name: str) -> list[int]:
        """Return the days since the epoch that have partitions."""
        ...

    def add(self, connection: sa.Connection, name: str, days: Sequence[int]) -> None:
        """Create partitions for days; fails quickly if others have locked the table."""
        ...

    def drop_day(self, connection: sa.Connection, name: str, day: int) -> Gone:
        """Drop a day's partition, and return its totals; fails quickly if others have locked the table."""
        ...

    def undated(self, rows: sa.Table) -> sa.Select[Any, Any, Any]:
        """Select seq, time_acked and epoch of the acked messages whose day has no partition."""
        ...


def days_to_add(known: Collection[int], now: int) -> list[int]:
    """Return the days that must get partitions at ``now``, ns."""
    today = now // DAY
    # Not every database can add a day before the last one; its messages stay in the default partition.
    first = max([today, *(day + 1 for day in known)])
    return list(range(first, today + DAYS_AHEAD + 1))


def days_to_drop(known: Collection[int], now: int, purge_after: int | None) -> list[int]:
    """Return the days with only messages that were acked ``purge_after`` ns ago or earlier."""
    if purge_after is None:
        return []
    return sorted(day for day in known if (day + 1) * DAY <= now - purge_after)
