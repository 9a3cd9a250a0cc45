"""Slots of time, by which MariaDB's index of due messages is ordered within a priority.

InnoDB compares a dead index entry only with a key that a search names as a whole, never with the end of a range. So a
search of a range that finds nothing goes on through all dead entries behind it: those of leases that would have ended
later, and those of the next priority. While a transaction holds an old snapshot, these become more and more. A search
that names the slots ends behind the last one.
"""

from __future__ import annotations

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
