"""Lower bounds of the due times in a table without groups, at which the searches of claims begin.

For each priority, no message before the bound is due, except late messages: plain SQL, ``put(at=)`` and ``reschedule``
may set a due time in the past. A trigger marks late messages (`TableDialect.is_late`), and they have an index of their
own. The bounds need a database that tells which transactions a snapshot sees (`TableDialect.seen_by`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import ABOVE_EVERY_PRIORITY, BELOW_EVERY_PRIORITY
from waterclock.tables.databases.postgresql.arrays import Bigints
from waterclock.tables.model.claims.bounds import LATE_BY, UNASSIGNED
from waterclock.tables.model.schema import is_waiting
from waterclock.time import MAX_NS

ADVANCE_EVERY = 0.1
"""Seconds between two searches that advance the bounds while messages are claimed: each is a round trip."""

_ADVANCE_IDLE_EVERY = 5.0
"""The same while none is claimed, once so many searches have followed the last claim that the bounds are behind it."""

_SEARCHES = 6


def has_bounds(context: TableContext) -> bool:
    """Return whether claims of a table begin at bounds."""
    options = context.options
    return (
        context.sql.is_bounded
        and options.groups is None
        and options.turns_by is None
        and context.backend.has_own_clock  # the trigger's
    )


def bounds_of(context: TableContext) -> Mapping[int, int]:
    """Return the time by priority before which nothing is due except late messages, ns."""
    if not has_bounds(context):
        return {}
    return {priority: bound.value for priority, bound in context.reached.groups.of_unassigned().items()}


def advance(context: TableContext) -> None:
    """Search for due messages from a table's bounds on, so that these advance, if the last search is old enough."""
    if begins_search(context):
        context.backend.alone(lambda own: _search(context, own, None), durable=False)


def _search(context: TableContext, connection: SqlConnection, until: int | None) -> sa.Row[*tuple[Any, ...]]:
    """Search from the bounds on, up to ``until`` or to now, and note the result."""
    bounds = context.reached.groups
    search = bounds.begin(UNASSIGNED)
    lows = dict(zip(search.priorities, (one.low for one in search.unassigned), strict=True))
    values = {**_values_of(lows), "marks": bounds.needs_mark(UNASSIGNED), "until": until}
    found = connection.execute(_looking(context), values).one()
    bounds.note(
        search,
        SimpleNamespace(
            now=found.now - LATE_BY,
            oldest=found.oldest,
            mark=found.mark,
            firsts=found.firsts,
            of_unassigned=found.unknown,
        ),
    )
    return found


def is_ahead(context: TableContext) -> bool:
    """Return whether bounds are known, and nothing was claimed since the last search: another would advance little."""
    return bool(bounds_of(context)) and context.reached.searches_left < _SEARCHES


def begins_search(context: TableContext) -> bool:
    """Return whether the last search that advances bounds is old enough for the next one, and note that it begins."""
    reached = context.reached
    now = moments.monotonic()
    if now - reached.advanced_at < (ADVANCE_EVERY if reached.searches_left else _ADVANCE_IDLE_EVERY):
        return False
    reached.advanced_at = now
    reached.searches_left = max(0, reached.searches_left - 1)
    return True


def note_claimed(context: TableContext) -> None:
    """Note that messages were claimed, beyond which the bounds can advance."""
    context.reached.searches_left = _SEARCHES


def due_from_bounds(context: TableContext, connection: SqlConnection) -> tuple[int | None, int] | None:
    """Return when a message may be due, and the current time, ns; None if a priority without a bound has messages."""
    if not bounds_of(context):  # the search from the first message is left to `advance`
        return None
    reached = context.reached
    reached.advanced_at, reached.searches_left = moments.monotonic(), max(0, reached.searches_left - 1)
    found = _search(context, connection, MAX_NS)
    if found.unknown is not None:
        return None
    due = [one for one in (*found.firsts, found.late) if one is not None]
    return min(due, default=None), found.now


def _values_of(lows: Mapping[int, int]) -> dict[str, Any]:
    known = sorted(lows, reverse=True)
    return {
        "known": known,
        "lows": [lows[priority] for priority in known],
        "aboves": [ABOVE_EVERY_PRIORITY, *known],
        "beneaths": [*known, BELOW_EVERY_PRIORITY],
    }


def _pairs(name: str, one: str, another: str) -> sa.TableValuedAlias:
    values = [sa.bindparam(each, type_=Bigints()) for each in (one, another)]
    columns = sa.column("priority", sa.BigInteger), sa.column("low", sa.BigInteger)
    return sa.func.unnest(*values).table_valued(*columns).render_derived(name)


@built_once(maxsize=256)
def _looking(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Search for the first message of each priority up to ``until``, or to now, and for priorities without a bound."""
    rows, sql, now = context.rows, context.sql, context.backend.now_sql()
    known, ranges = _pairs("given", "known", "lows"), _pairs("ranges", "aboves", "beneaths")
    first = (
        sa.select(rows.c.time_next)
        .where(
            is_waiting(rows),
            ~sql.is_late(rows),
            rows.c.priority == known.c.priority,
            rows.c.time_next >= known.c.low,
            rows.c.time_next <= sa.func.coalesce(sa.bindparam("until", type_=sa.BigInteger), now),
        )
        .order_by(rows.c.time_next)
        .limit(1)
        .correlate(known)
        .scalar_subquery()
    )
    firsts = sa.select(known.c.priority, first.label("first"), sql.first_late(rows, known.c.priority).label("late"))
    each = firsts.cte("firsts")
    in_order = sa.func.array_agg(aggregate_order_by(each.c.first, each.c.priority.desc()))
    between = (
        sa.select(rows.c.priority)
        .where(is_waiting(rows), rows.c.priority < ranges.c.priority, rows.c.priority > ranges.c.low)
        .order_by(rows.c.priority.desc())
        .limit(1)
        .lateral("between")
    )
    unknown = sa.select(sa.func.max(between.c.priority)).select_from(sa.join(ranges, between, sa.true()))
    oldest, mark = sql.seen_by(sa.bindparam("marks", type_=sa.Boolean))
    return sa.select(
        now.label("now"),
        oldest.label("oldest"),
        mark.label("mark"),
        sa.select(sa.type_coerce(in_order, sa.ARRAY(sa.BigInteger))).scalar_subquery().label("firsts"),
        sa.select(sa.func.min(each.c.late)).scalar_subquery().label("late"),
        unknown.scalar_subquery().label("unknown"),
    )
