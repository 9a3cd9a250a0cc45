"""The statements of claims in a table without groups, as far as the databases share them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.tables.claiming.claimed import Claimed, Wanted
from waterclock.tables.schema import is_waiting
from waterclock.time import MIN_NS

ABOVE_EVERY_PRIORITY = 2**31
BELOW_EVERY_PRIORITY = -(2**31) - 1
BEFORE_EVERY_TIME = MIN_NS
"""From where on a level is looked through that has no mark: what was due before 1970 is due."""

_Row = sa.Row[*tuple[Any, ...]]

_UNREAD = frozenset({"time_acked", "last_error", "lease", "consumer", "routed", "held_at"})


@lru_cache(maxsize=256)
def columns_read(rows: sa.Table) -> tuple[sa.Column[Any], ...]:
    """Choose the columns that a delivery is made of."""
    return tuple(column for column in rows.columns if column.name not in _UNREAD)


Take = Callable[[sa.Connection, sa.Table, Wanted, Sequence[tuple[int, int]]], None]
"""Makes messages ours: their seqs, each with the end of its lease in ns."""


def claim_in_steps(
    connection: sa.Connection,
    rows: sa.Table,
    wanted: Wanted,
    begin: Mapping[int, int],
    now: sa.ColumnElement[int],
    take: Take,
) -> list[Claimed]:
    """Claim where no one statement can: lock the messages, then make them ours."""
    found = _find_due(connection, rows, wanted, begin, now)
    if not found:
        return []
    wait = wanted.backoff.wait
    claimed = [Claimed(row, row[-1] + wait(row.epoch or 0, random.uniform(-1, 1))) for row in found]  # noqa: S311  # no secret
    take(connection, rows, wanted, [(one.row.seq, one.lease_until) for one in claimed])
    return claimed


def _find_due(
    connection: sa.Connection, rows: sa.Table, wanted: Wanted, begin: Mapping[int, int], now: sa.ColumnElement[int]
) -> list[_Row]:
    """Lock messages that are due and that nobody else has locked, in the order of a claim.

    Level by level from the top, because a walk through one index from the highest priority down would step over all
    that is out or scheduled there. A level that is known from earlier claims is asked at once, together with the
    question whether there is one above it by now.

    Returns
    -------
    list
        `columns_read`, and behind them the time, ns.
    """
    if wanted.order:
        statement = _due_in_order(rows, now, wanted.where, wanted.order)
        return list(connection.execute(statement, {"count": wanted.limit}))
    found: list[_Row] = []
    above = ABOVE_EVERY_PRIORITY
    known = sorted(begin, reverse=True)
    while len(found) < wanted.limit:
        level = next((priority for priority in known if priority < above), None)
        if level is not None:
            found += _due(connection, rows, wanted, now, len(found), level, begin[level], above)
            if len(found) == wanted.limit:
                break
        between = {"above": above, "beneath": BELOW_EVERY_PRIORITY if level is None else level}
        higher = connection.execute(_next_level(rows), between).scalar()
        if higher is not None:
            found += _due(connection, rows, wanted, now, len(found), higher, BEFORE_EVERY_TIME, above)
            above = higher
        elif level is not None:
            above = level
        else:
            break
    return found


def _due(
    connection: sa.Connection,
    rows: sa.Table,
    wanted: Wanted,
    now: sa.ColumnElement[int],
    already: int,
    level: int,
    low: int,
    above: int,
) -> Iterable[_Row]:
    return connection.execute(
        _due_at_level(rows, now, wanted.where),
        {"of": level, "low": low, "above": above, "count": wanted.limit - already},
    ).all()


@lru_cache(maxsize=256)
def _next_level(rows: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(rows.c.priority)
        .where(
            is_waiting(rows),
            rows.c.priority < sa.bindparam("above", type_=sa.BigInteger),
            rows.c.priority > sa.bindparam("beneath", type_=sa.BigInteger),
        )
        .order_by(rows.c.priority.desc())
        .limit(1)
    )


@lru_cache(maxsize=256)
def _due_at_level(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None
) -> sa.Select[*tuple[Any, ...]]:
    level = sa.bindparam("of", type_=sa.BigInteger)
    other = rows.alias("other")
    between = sa.exists().where(
        is_waiting(other),
        other.c.priority > level,
        other.c.priority < sa.bindparam("above", type_=sa.BigInteger),
    )
    return (
        sa.select(*columns_read(rows), now)
        .where(
            rows.c.time_acked.is_(None),
            rows.c.priority == level,
            rows.c.time_next <= now,
            rows.c.time_next >= sa.bindparam("low", type_=sa.BigInteger),
            ~between,
            sa.true() if where is None else where,
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=256)
def _due_in_order(
    rows: sa.Table,
    now: sa.ColumnElement[int],
    where: sa.ColumnElement[bool] | None,
    order: tuple[sa.ColumnElement[Any], ...],
) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*columns_read(rows), now)
        .where(rows.c.time_acked.is_(None), rows.c.time_next <= now, sa.true() if where is None else where)
        .order_by(*order)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


def priority_levels(rows: sa.Table) -> sa.CTE:
    """Walk down the priorities of messages that are not acked: one look into the index for each."""
    unacked = is_waiting(rows)
    top = sa.select(rows.c.priority).where(unacked).order_by(rows.c.priority.desc()).limit(1).scalar_subquery()
    levels = sa.select(top.label("priority")).cte("levels", recursive=True)
    below = (
        sa.select(rows.c.priority)
        .where(unacked, rows.c.priority < levels.c.priority)
        .order_by(rows.c.priority.desc())
        .limit(1)
        .scalar_subquery()
    )
    return levels.union_all(sa.select(below).where(levels.c.priority.is_not(None)))
