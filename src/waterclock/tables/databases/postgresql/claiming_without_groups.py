"""Claims messages of a table without groups on PostgreSQL, with one statement in one round trip."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import Grouping

from waterclock.database.per_database_cache import built_once
from waterclock.database.statement_compiling import IntegerInText
from waterclock.tables.databases.claiming_rows import (
    ABOVE_EVERY_PRIORITY,
    BEFORE_EVERY_TIME,
    BELOW_EVERY_PRIORITY,
    columns_read,
)
from waterclock.tables.databases.postgresql.arrays import Bigints
from waterclock.tables.model.claims.epochs import after_claim_sql
from waterclock.tables.model.row_conditions import is_late, is_waiting, not_acked
from waterclock.tables.model.schema import PARTITIONED
from waterclock.tables.model.timing.lease_length import LeaseLength

# As text, because PostgreSQL parses the number before its sign, and its absolute value exceeds bigint.
FROM_THE_FIRST = sa.cast(sa.literal_column(f"'{BEFORE_EVERY_TIME}'"), sa.BigInteger)
_LOOKED_AT = 128  # messages that a step over many priorities skips: reading them costs as much as one lookup of a level

_LIMIT = sa.bindparam("most", type_=IntegerInText())

_BEFORE = (
    "time_next",
    "epoch",
    "claim_id",
)  # columns whose old values a delivery needs; RETURNING returns the new ones


def by_priority(rows: sa.FromClause) -> sa.ColumnElement[int]:
    """Return the key of late messages: an expression, which no other index has."""
    return Grouping(rows.c.priority + sa.literal_column("0"))


def first_late(rows: sa.FromClause, priority: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the time of the first unacked late message of a priority."""
    late = rows.alias("late")
    found = sa.select(late.c.time_next).where(is_late(late), not_acked(late), by_priority(late) == priority)
    return found.order_by(late.c.time_next).limit(sa.literal_column("1")).correlate_except(late).scalar_subquery()


def key_is(key: sa.Column[int], value: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Compare a row's key with a computed value, so that any plan looks the row up.

    Statistics from when a table was empty claim that it has one row. For ``=`` the planner would then scan it by key
    for a merge join, and compare each row with all values. This form cannot be merged.
    """
    return key == sa.any_(postgresql.array([value]))


@built_once(maxsize=1024)
def claim_statement(
    rows: sa.Table,
    now: sa.ColumnElement[int],
    lease_length: LeaseLength,
    where: sa.ColumnElement[bool] | None,
    order: tuple[sa.ColumnElement[Any], ...],
) -> sa.Update:
    """Build the statement of a claim.

    It returns the old values of `columns_read`, followed by whether the message has expired, its rank in the requested
    order and the end of the lease. The text contains the limit: only then does the planner know how few rows are
    needed. Compiling the statement takes 20 ms, so all limits share it.
    """
    found = (_in_order if order else _level_by_level)(rows, now, where, order).cte("found").prefix_with("MATERIALIZED")
    epoch = sa.func.coalesce(found.c.epoch, 0)
    swing = 2 * sa.func.random(type_=sa.Float) - 1
    shortest, longest = lease_length.bounds
    length = sa.func.least(sa.func.greatest(lease_length.sql(epoch, swing), shortest), longest, type_=sa.BigInteger)
    before = [found.c[column.name] if column.name in _BEFORE else column for column in columns_read(rows)]
    expired = rows.c.expires_at <= now
    ours = key_is(rows.c.seq, found.c.seq)
    if rows.info.get(PARTITIONED):
        ours &= not_acked(rows)  # otherwise each day of acked messages is scanned
    return (
        sa.update(rows)
        .where(ours)
        .values(
            time_next=now + length,
            epoch=after_claim_sql(found.c.epoch),
            claim_id=sa.bindparam("by", type_=sa.BigInteger),
            consumer=sa.bindparam("who", type_=sa.Text),
        )
        .returning(*before, expired.label(None), found.c.place.label(None), rows.c.time_next.label(None))
    )


def _level_by_level(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None, _order: object
) -> sa.Select[*tuple[Any, ...]]:
    levels = _levels(rows, now)
    low = sa.func.least(levels.c.low, first_late(rows, levels.c.priority), type_=sa.BigInteger)
    due = (
        sa.select(rows.c.seq, rows.c.time_next, rows.c.epoch, rows.c.claim_id)
        .where(
            rows.c.time_acked.is_(None),
            rows.c.priority == levels.c.priority,
            rows.c.time_next <= now,
            rows.c.time_next >= low,
            sa.true() if where is None else where,
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(_LIMIT)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    return (
        sa.select(due.c.seq, due.c.time_next, due.c.epoch, due.c.claim_id, sa.literal_column("0").label("place"))
        .select_from(levels.join(due, sa.true()))
        .limit(_LIMIT)
    )


def _in_order(
    rows: sa.Table,
    now: sa.ColumnElement[int],
    where: sa.ColumnElement[bool] | None,
    order: tuple[sa.ColumnElement[Any], ...],
) -> sa.Select[*tuple[Any, ...]]:
    due = (
        sa.select(rows.c.seq, rows.c.time_next, rows.c.epoch, rows.c.claim_id)
        .where(rows.c.time_acked.is_(None), rows.c.time_next <= now, sa.true() if where is None else where)
        .order_by(*order)
        .limit(_LIMIT)
        .with_for_update(skip_locked=True)
        .subquery("due")
    )
    return sa.select(
        due.c.seq, due.c.time_next, due.c.epoch, due.c.claim_id, sa.func.row_number().over().label("place")
    )


def _levels(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.CTE:
    """Walk down the priorities. Those known from earlier claims come with their cursor.

    The index is read only between them, so that it need not step over acked messages at the head of a level. The walk
    is lazy: a claim that has enough stops. A step goes to the next level with a due message among the first
    `_LOOKED_AT`. If none is due, it goes to the last level of those, because a level has its oldest message first.
    """
    marks = [sa.bindparam(name, type_=Bigints()) for name in ("known", "lows")]
    given = sa.func.unnest(*marks).table_valued(sa.column("priority", sa.BigInteger), sa.column("low", sa.BigInteger))
    given = given.render_derived("given")
    levels = sa.select(
        sa.cast(sa.literal_column(str(ABOVE_EVERY_PRIORITY)), sa.BigInteger).label("priority"),
        FROM_THE_FIRST.label("low"),
    ).cte("levels", recursive=True)
    known = (
        sa.select(given.c.priority, given.c.low)
        .where(given.c.priority < levels.c.priority)
        .order_by(given.c.priority.desc())
        .limit(sa.literal_column("1"))
        .lateral("known")
    )
    beneath = sa.func.coalesce(known.c.priority, sa.literal_column(str(BELOW_EVERY_PRIORITY), sa.BigInteger))
    near = (
        sa.select(rows.c.priority, rows.c.time_next)
        .where(is_waiting(rows), rows.c.priority < levels.c.priority, rows.c.priority > beneath)
        .order_by(rows.c.priority.desc(), rows.c.time_next)
        .limit(sa.literal_column(str(_LOOKED_AT)))
        .correlate(levels, known)
    )
    first_due, all_near = near.subquery("first_due"), near.subquery("all_near")
    nearest = sa.select(first_due.c.priority).where(first_due.c.time_next <= now).limit(sa.literal_column("1"))
    lowest = sa.select(sa.func.min(all_near.c.priority))
    # The offset keeps it from being evaluated once for each reference.
    between = (
        sa.select(sa.func.coalesce(nearest.scalar_subquery(), lowest.scalar_subquery()).label("priority"))
        .offset(sa.literal_column("0"))
        .lateral("between")
    )
    step = (
        sa.select(
            sa.func.coalesce(between.c.priority, known.c.priority),
            sa.case((between.c.priority.is_(None), known.c.low), else_=FROM_THE_FIRST),
        )
        .select_from(levels.outerjoin(known, sa.true()).outerjoin(between, sa.true()))
        .where(sa.or_(between.c.priority.is_not(None), known.c.priority.is_not(None)))
    )
    return levels.union_all(step)
