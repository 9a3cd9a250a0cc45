"""Searches for due groups from lower bounds, on a database that begins at a bound only if it is a constant.

Each known priority is searched upward from its bound. The ranges between known priorities are searched for others.
`bounded_routing` advances the bounds. They stay behind the clock, because the row of a group is written some time after
its new time is computed, but a group is not due before that (`TableDialect.at_write`).

A search that finds nothing passes the dead entries behind its range until it meets a row: those of leases that were to
end later, and those of the neighbouring tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import ABOVE_EVERY_PRIORITY
from waterclock.tables.model.claims.bounds import LATE_BY, UNASSIGNED, WRITTEN_WITHIN, FirstTimes, GroupSearch


@dataclass(frozen=True, slots=True)
class DueGroups:
    """When the first groups of an owner are due."""

    firsts: dict[int, int]  # by known priority, ns
    unknown: int | None  # another priority that has groups, if the search looked there

    def highest(self, below: int, until: int | None) -> int | None:
        """Return the highest known priority below ``below`` that has groups due until then, ns; None: at any time."""
        due = [one for one, first in self.firsts.items() if one < below and (until is None or first <= until)]
        return max(due, default=None)


def has_bounds(context: TableContext) -> bool:
    """Return whether searches for due groups begin at bounds, on a database that `begins_at_constants`."""
    return context.backend.has_own_clock and len(context.reached.groups.of_unassigned()) <= MOST_KNOWN


MOST_KNOWN = 8
"""Priorities up to which searches begin at bounds: each is a search of its own, and each number of them a statement."""

_OWNERS = "unassigned", "me"


def count_of(known: Sequence[int]) -> int:
    """Return how many columns `columns_of` returns."""
    return len(_OWNERS) * (2 * len(known) + 1)


def values_of(search: GroupSearch, below: int = ABOVE_EVERY_PRIORITY) -> dict[str, Any]:
    """Return the parameters of `columns_of`. Other priorities than the known ones are searched below ``below``."""
    # With NULL, the second of two equal searches finds nothing at once.
    me = None if search.consumer == UNASSIGNED else search.consumer
    values: dict[str, Any] = {"unassigned": UNASSIGNED, "me": me, "below": below}
    for owner, starts in zip(_OWNERS, (search.unassigned, search.own), strict=True):
        values |= {f"low_{owner}_{place}": start.low for place, start in enumerate(starts)}
    for place, priority in enumerate(search.priorities):
        values |= {f"known_{place}": priority, f"above_{place}": priority + 1, f"below_{place}": priority - 1}
    return values


def columns_of(context: TableContext, count: int) -> list[sa.ColumnElement[Any]]:
    """Return the columns of `read`, for ``count`` known priorities."""
    searches: list[sa.Select[Any]] = []
    for owner in _OWNERS:
        its = (
            groups.c.table_id == context.table_id,
            groups.c.assigned == sa.bindparam(owner, type_=groups.c.assigned.type),
        )
        for place in range(count):
            low = sa.bindparam(f"low_{owner}_{place}", type_=sa.BigInteger)
            known = *its, groups.c.priority == _bound("known", place), groups.c.ready_at >= low
            searches.append(sa.select(groups.c.ready_at).where(*known).order_by(groups.c.ready_at).limit(1))
        for place in range(count + 1):
            # A search that finds nothing goes on through the dead entries behind the range. So it goes away from those
            # of the known priority, and of sequenced groups, of which few have an owner, away from unassigned ones.
            upward = place == 0 < count or (owner == "me" and context.options.groups == "sequenced")
            order = groups.c.priority if upward else groups.c.priority.desc()
            below = sa.bindparam("below", type_=sa.BigInteger)
            between = [*its, groups.c.ready_at.is_not(None), groups.c.priority < below]
            if place > 0:
                between.append(groups.c.priority <= _bound("below", place - 1))
            if place < count:
                between.append(groups.c.priority >= _bound("above", place))
            searches.append(sa.select(groups.c.priority).where(*between).order_by(order).limit(1))
    return [one.scalar_subquery().label(f"column_{place}") for place, one in enumerate(searches)]


def _bound(name: str, place: int) -> sa.BindParameter[int]:
    return sa.bindparam(f"{name}_{place}", type_=sa.BigInteger)


def read(known: Sequence[int], values: Sequence[Any]) -> tuple[DueGroups, DueGroups]:
    """Return the unassigned groups and the consumer's own from the values of `columns_of`."""
    half = count_of(known) // 2
    return read_owner(known, values[:half]), read_owner(known, values[half:])


def read_owner(known: Sequence[int], values: Sequence[Any]) -> DueGroups:
    """Return the groups of one owner from the first times of known priorities, and then other priorities."""
    firsts = {one: first for one, first in zip(known, values, strict=False) if first is not None}
    return DueGroups(firsts, max((one for one in values[len(known) :] if one is not None), default=None))


def note(
    context: TableContext, search: GroupSearch, now: int, found: Sequence[tuple[DueGroups, DueGroups]], *, waits: bool
) -> None:
    """Advance the bounds after a search of uncommitted and one of committed groups, which began after ``now``, ns."""
    sides = [
        search.firsts(starts, [looked[place].firsts for looked in found], waits=waits)
        for place, starts in enumerate((search.unassigned, search.own))
    ]
    unassigned, own = found[-1]
    now -= LATE_BY + WRITTEN_WITHIN
    context.reached.groups.note(search, FirstTimes(now, sides[0], unassigned.unknown, sides[1], own.unknown))
