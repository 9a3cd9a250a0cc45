"""Claiming messages that are in no group, in a table with groups: like those of a table without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.messages.dead_letters import bury, exhausted_reason
from waterclock.tables.model.claim import Claimed, Wanted
from waterclock.tables.model.schema import is_waiting, not_acked


def claim_free(
    context: TableContext, connection: SqlConnection, wanted: Wanted, priority: int, most: int, now: int
) -> list[Claimed]:
    """Take up to ``most`` messages of a priority that are due at ``now``, the oldest first."""
    found = connection.execute(_due(context), {"of": priority, "now": now, "count": most}).all()
    most_attempts = context.options.max_attempts
    if most_attempts is not None:
        exhausted = [row.seq for row in found if (row.epoch or 0) >= most_attempts]
        if exhausted:
            bury(context, connection, exhausted, exhausted_reason(context))
            found = [row for row in found if row.seq not in exhausted]
    wait = wanted.backoff.wait
    claimed = [Claimed(row, now + wait(row.epoch or 0, random.uniform(-1, 1))) for row in found]  # noqa: S311  # no secret
    if claimed:
        mark = {"by": wanted.claim_id, "who": wanted.consumer}
        connection.execute(_take(context), [{"of": one.row.seq, "until": one.lease_until, **mark} for one in claimed])
    return claimed


def free_priority(context: TableContext, connection: SqlConnection, below: int) -> int | None:
    """Find the next priority that some of them have."""
    return connection.execute(_next_priority(context), {"below": below}).scalar()


def free_due_times(context: TableContext, connection: sa.Connection, priority: int) -> Iterator[int]:
    """Find when the first one of a priority is due, ns."""
    found = connection.execute(_earliest(context), {"of": priority}).scalar()
    if found is not None:
        yield found


def _free(context: TableContext) -> sa.ColumnElement[bool]:
    return is_waiting(context.rows) & context.rows.c.group_id.is_(None)


@lru_cache(maxsize=256)
def _due(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    return (
        sa.select(*columns_read(rows))
        .where(
            _free(context),
            rows.c.priority == sa.bindparam("of"),
            rows.c.time_next <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=256)
def _take(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), not_acked(rows))
        .values(
            time_next=sa.bindparam("until"),
            epoch=sa.func.coalesce(rows.c.epoch, 0) + 1,
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )


@lru_cache(maxsize=256)
def _next_priority(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return (
        sa.select(rows.c.priority)
        .where(_free(context), rows.c.priority < sa.bindparam("below", type_=sa.BigInteger))
        .order_by(rows.c.priority.desc())
        .limit(1)
    )


@lru_cache(maxsize=256)
def _earliest(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return (
        sa.select(rows.c.time_next)
        .where(_free(context), rows.c.priority == sa.bindparam("of"))
        .order_by(rows.c.time_next)
        .limit(1)
    )
