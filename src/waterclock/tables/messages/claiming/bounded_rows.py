"""Lower bounds of due times, at which claims begin their searches in a table without groups.

For each priority, no message has a due time before the bound, except late messages: plain SQL, ``put(at=)`` and
``reschedule`` may set a due time in the past. A trigger marks late messages (`is_late`), and they have an index of
their own. A bound advances after searches have found nothing before it. The database determines which searches:

- If a snapshot tells which transactions it sees (`TableDialect.seen_by`), as `ProvenBound` describes.
- Otherwise two searches must find nothing. The first also sees uncommitted messages. The second sees only committed
  ones, in case a transaction that changed messages was rolled back meanwhile. The bound stays `WRITTEN_WITHIN` behind
  the clock, because an INSERT may read the time before both searches and write its message between them. For the same
  reason, the bound does not advance while any statement waits for a lock: it may be an INSERT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import MOST_MARKS
from waterclock.tables.model.claims.bounds import LATE_BY, UNASSIGNED, WRITTEN_WITHIN, FirstTimes, GroupSearch
from waterclock.tables.model.claims.due_slots import (
    SLOT,
    due_order,
    end_of,
    in_slots,
    priorities_between,
    slots_of,
    time_in_slots,
)
from waterclock.tables.model.row_conditions import is_late, is_waiting
from waterclock.time import MAX_NS

ADVANCE_EVERY = 0.1
"""Seconds between two searches that advance the bounds while messages are claimed: each is a round trip."""

_ADVANCE_IN_PAIRS_EVERY = 0.5
"""Seconds between two advances if each is two searches, in separate transactions."""

_ADVANCE_IDLE_EVERY = 5.0
"""Seconds between two advances while nothing is claimed, once the bounds have passed the last claim."""

_SEARCHES = 6

AHEAD = 4 * SLOT
"""How far ahead a wait searches for the next message, ns, if the search names slots: it is repeated then."""


def bounds_of(context: TableContext) -> Mapping[int, int]:
    """Return the time by priority before which nothing is due except late messages, ns."""
    if not context.rows_have_bounds:
        return {}
    bounds = context.reached.groups.lows()
    # A claim in steps has two statements for each priority with a bound.
    return bounds if context.sql.is_bounded or len(bounds) <= MOST_MARKS else {}


def advance(context: TableContext) -> None:
    """Search for due messages from a table's bounds on, so that these advance, if the last search is old enough."""
    if not begins_search(context):
        return
    search = context.reached.groups.begin(UNASSIGNED)

    def look(connection: SqlConnection) -> _FirstsFound:
        return _look(context, connection, search.lows, None)

    found: list[_FirstsFound] = []
    if not context.sql.is_bounded:
        began = context.backend.alone(context.sql.now_without_lock_waits, durable=False)
        found.append(context.backend.look_at_uncommitted(look))
        if began is None:
            found[0].firsts = [one.known for one in search.unassigned]  # none advances, but one may be distrusted
        else:
            found[0].now = began
    _note(context, search, *found, context.backend.alone(look, durable=False))


def _look(
    context: TableContext, connection: SqlConnection, lows: Mapping[int, int], until: int | None, ahead: int = 0
) -> _FirstsFound:
    """Search from ``lows`` on, up to ``until``, or as far as a bound may be; in slots, up to ``ahead`` ns from now."""
    levels = sorted(lows, reverse=True)
    about = context.reached.about_now()
    slots = [slots_of(context.rows, lows[level], about, ahead) for level in levels]
    gaps = _gaps_of(context, levels)
    values = {"marks": context.reached.groups.needs_mark(UNASSIGNED), "until": until, "behind": _behind(context)}
    values |= {f"slots_{place}": some for place, some in enumerate(slots)}
    values |= {f"gap_{place}": some for place, some in enumerate(gaps, 1)}
    statement = _looking(context, *(tuple(some is not None for some in named) for named in (slots, gaps)))
    began = moments.monotonic()
    row = connection.execute(statement, {**_values_of(lows), **values}).one()
    found = _FirstsFound(row, len(lows), min((end_of(some[-1]) for some in slots if some is not None), default=None))
    context.reached.note_clock(began, found.now)
    return found


def _gaps_of(context: TableContext, levels: Sequence[int]) -> list[list[int] | None]:
    """Return the priorities between neighbouring levels; None for those that are searched as a range."""
    if context.sql.is_bounded:
        return [None] * (len(levels) - 1)
    return [priorities_between(low, high) for high, low in pairwise(levels)]


def _behind(context: TableContext) -> int:
    return LATE_BY if context.sql.is_bounded else LATE_BY + WRITTEN_WITHIN


def _note(context: TableContext, search: GroupSearch, *found: _FirstsFound) -> None:
    firsts = [
        min((one for one in of if one is not None), default=None)
        for of in zip(*(one.firsts for one in found), strict=True)
    ]
    seen = {"oldest": found[0].oldest, "mark": found[0].mark}
    now = min(one.searched_until(_behind(context)) for one in found)
    context.reached.groups.note(search, FirstTimes(now, firsts, found[-1].unknown, **seen))


def is_ahead(context: TableContext) -> bool:
    """Return whether bounds are known, and nothing was claimed since the last search: another would advance little."""
    return context.reached.searches_left < _SEARCHES and bool(bounds_of(context))


def begins_search(context: TableContext) -> bool:
    """Return whether the last search that advances bounds is old enough for the next one, and note that it begins."""
    reached = context.reached
    now = moments.monotonic()
    every = ADVANCE_EVERY if context.sql.is_bounded else _ADVANCE_IN_PAIRS_EVERY
    if now - reached.advanced_at < (every if reached.searches_left else _ADVANCE_IDLE_EVERY):
        return False
    reached.advanced_at = now
    reached.searches_left = max(0, reached.searches_left - 1)
    return True


def note_claimed(context: TableContext) -> None:
    """Note that messages were claimed, beyond which the bounds can advance."""
    context.reached.searches_left = _SEARCHES


def due_from_bounds(context: TableContext, connection: SqlConnection, ahead: int = 0) -> tuple[int | None, int] | None:
    """Return when a message may be due, and the current time, ns; None if a priority without a bound has messages.

    On MariaDB, a message that is due more than ``ahead`` ns from now may not be found. Then something may be due at the
    end of the search.
    """
    lows = bounds_of(context)  # the search from the first message is left to `advance`
    if not lows:
        return None
    if context.sql.is_bounded:
        reached = context.reached
        reached.advanced_at, reached.searches_left = moments.monotonic(), max(0, reached.searches_left - 1)
        search = reached.groups.begin(UNASSIGNED)
        found = _look(context, connection, search.lows, MAX_NS)
        _note(context, search, found)
    else:
        found = _look(context, connection, lows, MAX_NS, ahead)
    if found.unknown is not None:
        return None
    due = [one for one in (*found.firsts, *found.lates, found.end) if one is not None]
    return min(due, default=None), found.now


class _FirstsFound:
    """The result of `_looking` for so many priorities, with None for those without messages."""

    def __init__(self, row: Any, count: int, end: int | None) -> None:
        self.end = end  # before which slots were searched, ns; None: all messages were
        self.now, self.oldest, self.mark, *times = row
        self.firsts, self.lates = times[:count], times[count : 2 * count]
        self.unknown = max((one for one in times[2 * count :] if one is not None), default=None)

    def searched_until(self, behind: int) -> int:
        """Return the time up to which a bound may advance that stays so many ns behind the clock."""
        return self.now - behind if self.end is None else min(self.now - behind, self.end)


def _values_of(lows: Mapping[int, int]) -> dict[str, Any]:
    known = sorted(lows, reverse=True)
    values = {f"known_{place}": priority for place, priority in enumerate(known)}
    values |= {f"low_{place}": lows[priority] for place, priority in enumerate(known)}
    values |= {f"below_{place}": priority - 1 for place, priority in enumerate(known)}
    return values | {f"above_{place}": priority + 1 for place, priority in enumerate(known, 1)}


@built_once(maxsize=256)
def _looking(
    context: TableContext, slots_named: tuple[bool, ...], gap_named: tuple[bool, ...]
) -> sa.Select[*tuple[Any, ...]]:
    """Search for messages of known priorities up to ``until``, for late ones, and for other priorities.

    Each is a search of its own, because MariaDB begins at a bound only if that is a constant. ``slots_named`` says for
    each known priority whether the search names slots, and ``gap_named`` for each gap whether it names priorities.
    """
    count = len(slots_named)
    rows, sql, now = context.rows, context.sql, context.backend.now_sql()
    given, behind = (sa.bindparam(name, type_=sa.BigInteger) for name in ("until", "behind"))
    until = sa.func.coalesce(given, now - behind)
    known = [sa.bindparam(f"known_{place}", type_=sa.BigInteger) for place in range(count)]
    columns: list[sa.ColumnElement[Any]] = [now, *_seen_by(context)]
    for place, priority in enumerate(known):
        its, time = [is_waiting(rows)], rows.c.time_next
        if slots_named[place]:
            its, time = (
                [rows.c.time_acked.is_(None), in_slots(f"slots_{place}")],
                time_in_slots(rows),
            )
        low = sa.bindparam(f"low_{place}", type_=sa.BigInteger)
        its += [~is_late(rows), rows.c.priority == priority, time >= low, time <= until]
        first = sa.select(rows.c.time_next).where(*its)
        columns.append(first.order_by(*due_order(rows)).limit(1).scalar_subquery())
    columns += (sql.first_late(rows, priority) for priority in known)
    for place in range(count + 1):
        # A search that finds nothing would go on through the dead entries of the priority behind the range.
        order = rows.c.priority if place == 0 < count else rows.c.priority.desc()
        between = [is_waiting(rows)]
        if 0 < place < count and gap_named[place - 1]:
            named = sa.bindparam(f"gap_{place}", type_=sa.BigInteger, expanding=True)
            found = sa.select(rows.c.priority).where(rows.c.time_acked.is_(None), rows.c.priority.in_(named))
            columns.append(found.order_by(rows.c.priority).limit(1).scalar_subquery())
            continue
        if place > 0:
            between.append(rows.c.priority <= sa.bindparam(f"below_{place - 1}", type_=sa.BigInteger))
        if place < count:
            between.append(rows.c.priority >= sa.bindparam(f"above_{place + 1}", type_=sa.BigInteger))
        columns.append(sa.select(rows.c.priority).where(*between).order_by(order).limit(1).scalar_subquery())
    return sa.select(*(column.label(f"column_{place}") for place, column in enumerate(columns)))


def _seen_by(context: TableContext) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    if context.sql.is_bounded:
        return context.sql.seen_by(sa.bindparam("marks", type_=sa.Boolean), context.rows)
    return sa.null(), sa.null()
