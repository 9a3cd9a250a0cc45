"""Ending deliveries in a table without groups: each is one statement, so that it can commit in the same round trip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.dialect import TableDialect
from waterclock.tables.model.held import Acked, Held
from waterclock.tables.model.schema import not_acked

_T = TypeVar("_T")

Holding = tuple[int, int]
"""Which row, and the number of the claim under which it is held."""


AT_ONCE = 5000
"""Messages that one statement acks: a server refuses a statement that is too long, and its planner has bounds, too."""

_CLAIMS_AT_ONCE = 500
"""Messages of several claims that one statement acks, because each is two parameters, of which PostgreSQL takes 65,535
and SQLite 32,766."""


def is_one_statement(held: Sequence[Held], ids: Sequence[Any]) -> bool:
    """Say whether acking these is one statement."""
    several = len({one.lease for one in held}) + bool(ids) > 1
    return not several and len(held) <= AT_ONCE and len(ids) <= AT_ONCE


def ack_ids(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> int:
    """Ack messages by id; return how many were not acked before. A consumer that has one finds its lease lost."""
    statement = _acking_ids(context.rows, context.sql, context.backend.now_sql())
    return sum(connection.execute(statement, {"ids": list(some)}).rowcount for some in _pieces(ids, AT_ONCE))


def ack_held(context: TableContext, connection: sa.Connection, held: Sequence[Held]) -> Acked:
    """Ack messages that a consumer holds.

    The lease's number stays on the row. So when the answer to an ack was lost, and the ack is tried again, it differs
    from an ack by another consumer.
    """
    by_lease = sorted(held, key=lambda one: one.lease)
    is_one_claim = not held or by_lease[0].lease == by_lease[-1].lease
    changed = 0
    missed: list[Held] = []
    for some in _pieces(by_lease, AT_ONCE if is_one_claim else _CLAIMS_AT_ONCE):
        values: dict[str, Any] = {"seqs": [one.seq for one in some]}
        if is_one_claim:
            values["by"] = some[0].lease
            ours = _one_lease(context.rows)
        else:
            values["held"] = [(one.seq, one.lease) for one in some]
            ours = _some_leases(context.rows)
        statement = _acking_held(context.rows, context.sql, context.backend.now_sql(), ours)
        acked = connection.execute(statement, values).rowcount
        changed += acked
        if acked < len(some):
            missed += some
    lost = frozenset(missed).difference(acked_by(context, connection, missed))
    return Acked(lost, len(held) - changed - len(lost))


def acked_by(context: TableContext, connection: sa.Connection, held: Sequence[Held]) -> set[Held]:
    """Tell which messages are acked under the claims by which they are held. Reads only."""
    ours: set[Held] = set()
    for some in _pieces(held, AT_ONCE):
        values = {"seqs": [one.seq for one in some], "ids": [one.id for one in some]}
        leases = {row.seq: row.lease for row in connection.execute(_acked(context), values)}
        ours.update(one for one in some if leases.get(one.seq) == one.lease)
    return ours


def _pieces(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


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
def _acked(context: TableContext) -> sa.Select[Any, Any]:
    return sa.select(context.rows.c.seq, context.rows.c.lease).where(context.acked())


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
