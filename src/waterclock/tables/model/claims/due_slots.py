"""Slots of time, by which MariaDB's index of due messages is ordered within a priority.

InnoDB compares a dead index entry only with a key that a search names as a whole, never with the end of a range. So a
search of a range that finds nothing goes on through all dead entries behind it: those of leases that would have ended
later, and those of the next priority. While a transaction holds an old snapshot, these become more and more. A search
that names the slots ends behind the last one.
"""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.tables.model.schema import DUE_SLOT

SLOT = 2**31
"""The length of a slot, ns."""

MOST_SLOTS = 12
"""The most slots that a search names: each is a search of its own."""

MOST_BETWEEN = 8
"""The most priorities between two known ones that a search names."""


def slots_between(low: int, until: int) -> list[int] | None:
    """Return the slots from one time to a later one, ns; None if a search must not name so many."""
    first, last = low // SLOT, until // SLOT
    return [*range(first, last + 1)] if 0 <= first <= last < first + MOST_SLOTS else None


def end_of(slot: int) -> int:
    """Return the time at which a slot ends, ns."""
    return (slot + 1) * SLOT


def priorities_between(low: int, high: int) -> list[int] | None:
    """Return the priorities between two known ones; None if a search must not name so many."""
    return [*range(low + 1, high)] if high - low <= MOST_BETWEEN + 1 else None


def slots_of(rows: sa.FromClause, low: int, about: int | None, ahead: int = 0) -> list[int] | None:
    """Return the slots to search from a bound on, up to ``ahead`` ns from ``about`` the current time, if it is known.

    None for a search that names no slots.
    """
    return None if about is None or not _has_slots(rows) else slots_between(low, about + SLOT + ahead)


def due_order(rows: sa.FromClause) -> tuple[sa.ColumnElement[int], ...]:
    """Return the columns by which the claim's index orders the messages of a priority, for a search of one table."""
    return (_slot(), rows.c.time_next) if _has_slots(rows) else (rows.c.time_next,)


def in_slots(name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a message is due in one of the slots bound as ``name``, for a search of one table."""
    return _slot().in_(sa.bindparam(name, type_=sa.BigInteger, expanding=True))


def time_in_slots(rows: sa.FromClause) -> sa.ColumnElement[int]:
    """Return when a message is due, for a search that names slots: the column itself would make a range of each."""
    return rows.c.time_next + sa.literal_column("0")


def _slot() -> sa.ColumnClause[int]:
    return sa.column(DUE_SLOT, sa.BigInteger)


def _has_slots(rows: sa.FromClause) -> bool:
    table = rows.element if isinstance(rows, sa.Alias) else rows
    return isinstance(table, sa.Table) and bool(table.info.get(DUE_SLOT))
