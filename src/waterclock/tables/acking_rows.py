"""Ending deliveries in a table without groups: each is one statement, so that it can commit in the same round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.tables.context import TableContext
from waterclock.tables.databases.dialect import TableDialect
from waterclock.tables.held import Held
from waterclock.tables.schema import not_acked

Holding = tuple[int, int]
"""Which row, and the number of the claim under which it is held."""


def ack_ids(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> int:
    """Ack messages by id; return how many were not acked before. Whoever has one finds its lease lost."""
    if not ids:
        return 0
    statement = _acking_ids(context.rows, context.sql, context.backend.now_sql())
    return connection.execute(statement, {"ids": list(ids)}).rowcount


def ack_held(context: TableContext, connection: sa.Connection, held: Sequence[Held]) -> set[int]:
    """Ack messages; return the seqs of those whose lease was lost.

    The lease's number stays on the row. So when the answer to an ack was lost, and the ack is tried again, it is told
    from an ack by somebody else.
    """
    if not held:
        return set()
    leases = {one.lease for one in held}
    parameters: dict[str, Any] = {"seqs": [one.seq for one in held]}
    if len(leases) == 1:
        parameters["by"] = leases.pop()
        ours = _one_lease(context.rows)
    else:
        parameters["held"] = [(one.seq, one.lease) for one in held]
        ours = _some_leases(context.rows)
    statement = _acking_held(context.rows, context.sql, context.backend.now_sql(), ours)
    if connection.execute(statement, parameters).rowcount == len(held):
        return set()
    acked = connection.scalars(_acked_by_us(context, ours), parameters | {"ids": [one.id for one in held]})
    return set(parameters["seqs"]) - set(acked)


def back_off(context: TableContext, connection: sa.Connection, held: Holding, delay: int, error: str | None) -> bool:
    """Give a message back to be sent again after ``delay`` ns; False where the lease was lost."""
    statement = _backing_off(context.rows, context.backend.now_sql())
    parameters = {"of": held[0], "by": held[1], "delay": delay, "why": error}
    return connection.execute(statement, parameters).rowcount == 1


def back_off_all(context: TableContext, connection: sa.Connection, delays: Mapping[Holding, int]) -> None:
    """Give messages back whose rows the transaction has locked, each to be sent again after a delay of its own, ns."""
    if delays:
        statement = _backing_off(context.rows, context.backend.now_sql())
        each = [{"of": seq, "by": lease, "delay": delay, "why": None} for (seq, lease), delay in delays.items()]
        connection.execute(statement, each)


@lru_cache(maxsize=256)
def _one_lease(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.lease == sa.bindparam("by", type_=sa.BigInteger)


@lru_cache(maxsize=256)
def _some_leases(rows: sa.Table) -> sa.ColumnElement[bool]:
    return sa.tuple_(rows.c.seq, rows.c.lease).in_(sa.bindparam("held", expanding=True))


@lru_cache(maxsize=256)
def _acking_ids(rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.id, "ids"), not_acked(rows))
        .values(time_acked=now, time_next=None, lease=None)
    )


@lru_cache(maxsize=256)
def _acking_held(
    rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int], which: sa.ColumnElement[bool]
) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.seq, "seqs"), which, not_acked(rows))
        .values(time_acked=now, time_next=None)
    )


@lru_cache(maxsize=256)
def _acked_by_us(context: TableContext, ours: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(context.rows.c.seq).where(context.acked(), ours)


@lru_cache(maxsize=256)
def _backing_off(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(
            rows.c.seq == sa.bindparam("of"),
            rows.c.lease == sa.bindparam("by", type_=sa.BigInteger),
            not_acked(rows),
        )
        .values(
            time_next=now + sa.bindparam("delay", type_=sa.BigInteger),
            lease=None,
            last_error=sa.func.coalesce(sa.bindparam("why", type_=sa.Text), rows.c.last_error),
        )
    )
