"""Finds the priorities of due groups without reading dead index entries.

This search needs a database that tells which transactions a snapshot sees (`TableDialect.seen_by`). Most of the highest
index entries of a priority are dead, because they belong to leases that have ended. So each known priority is searched
upward, from a time before which no group is due. The highest entry is looked up only between known priorities.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import ABOVE_EVERY_PRIORITY, BELOW_EVERY_PRIORITY
from waterclock.tables.databases.postgresql.arrays import Bigints
from waterclock.tables.databases.postgresql.claiming_without_groups import FROM_THE_FIRST
from waterclock.tables.model.claims.bounds import GroupSearch


def values_of(search: GroupSearch) -> dict[str, Any]:
    """Return the parameters of `firsts_of` and `highest_of`."""
    known = search.priorities
    return {
        "known": known,
        "lows": [one.low for one in search.unassigned],
        "own_lows": [one.low for one in search.own],
        "aboves": [ABOVE_EVERY_PRIORITY, *known],
        "beneaths": [*known, BELOW_EVERY_PRIORITY],
    }


def firsts_of(context: TableContext, who: str, lows: str) -> sa.CTE:
    """Return the first due group of each known priority, assigned to the owner bound as ``who``."""
    values = [sa.bindparam(name, type_=Bigints()) for name in ("known", lows)]
    known = sa.func.unnest(*values).table_valued(sa.column("priority", sa.BigInteger), sa.column("low", sa.BigInteger))
    known = known.render_derived(f"known_{who}")
    first = (
        sa.select(groups.c.ready_at)
        .where(
            *_assigned(context, who),
            groups.c.priority == known.c.priority,
            groups.c.ready_at >= known.c.low,
            groups.c.ready_at <= context.backend.now_sql(),
        )
        .order_by(groups.c.ready_at)
        .limit(1)
        .correlate(known)
        .scalar_subquery()
    )
    return sa.select(known.c.priority, known.c.low, first.label("first")).cte(f"due_{who}")


def times_of(firsts: sa.CTE) -> sa.ScalarSelect[Any]:
    """Return the times, from the highest priority down."""
    ordered = sa.func.array_agg(aggregate_order_by(firsts.c.first, firsts.c.priority.desc()))
    return sa.select(sa.type_coerce(ordered, sa.ARRAY(sa.BigInteger))).scalar_subquery()


def low_of(firsts: sa.CTE, priority: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the time from which groups of a priority are searched."""
    low = sa.select(firsts.c.low).where(firsts.c.priority == priority).scalar_subquery()
    return sa.func.coalesce(low, FROM_THE_FIRST)


def highest_of(context: TableContext, who: str, firsts: sa.CTE, below: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the highest priority below another one with a due group; an unknown one may have none."""
    is_due = firsts.c.first.is_not(None), firsts.c.priority < below
    known = sa.select(sa.func.max(firsts.c.priority)).where(*is_due).scalar_subquery()
    values = [sa.bindparam(name, type_=Bigints()) for name in ("aboves", "beneaths")]
    ranges = sa.func.unnest(*values).table_valued(
        sa.column("above", sa.BigInteger), sa.column("beneath", sa.BigInteger)
    )
    ranges = ranges.render_derived("ranges")
    one = (
        sa.select(groups.c.priority)
        .where(
            *_assigned(context, who),
            groups.c.ready_at.is_not(None),
            groups.c.priority < ranges.c.above,
            groups.c.priority < below,  # not by LEAST, which ignores NULL
            groups.c.priority > ranges.c.beneath,
        )
        .order_by(groups.c.priority.desc())
        .limit(1)
        .lateral("one")
    )
    unknown = sa.select(sa.func.max(one.c.priority)).select_from(sa.join(ranges, one, sa.true())).scalar_subquery()
    return sa.func.greatest(known, unknown, type_=sa.BigInteger)


def _assigned(context: TableContext, who: str) -> tuple[sa.ColumnElement[bool], ...]:
    owner = sa.bindparam(who, type_=groups.c.assigned.type)
    return groups.c.table_id == context.table_id, groups.c.assigned == owner
