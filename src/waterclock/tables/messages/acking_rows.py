"""Ending deliveries in a table without groups: each is one statement, so that it can commit in the same round trip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import TableDialect
from waterclock.tables.model.leased import Acked, Leased
from waterclock.tables.model.schema import ack_values, not_acked

_T = TypeVar("_T")

Taken = tuple[int, int]
"""Which row, and the number of the claim that took it."""


AT_ONCE = 5000
"""Messages that one statement acks: a server refuses a statement that is too long, and its planner has bounds, too."""

_CLAIMS_AT_ONCE = 500
"""Messages of several claims that one statement acks, because each is two parameters, of which PostgreSQL takes 65,535
and SQLite 32,766."""


def is_one_statement(leased: Sequence[Leased], ids: Sequence[Any]) -> bool:
    """Say whether acking these is one statement."""
    several = len({one.claim_id for one in leased}) + bool(ids) > 1
    return not several and len(leased) <= AT_ONCE and len(ids) <= AT_ONCE


def ack_ids(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> int:
    """Ack messages by id; return how many were not acked before. A consumer that has one finds its lease lost."""
    statement = _acking_ids(context.rows, context.sql, context.backend.now_sql())
    return sum(connection.execute(statement, {"ids": list(some)}).rowcount for some in _pieces(ids, AT_ONCE))


def ack_leased(context: TableContext, connection: sa.Connection, leased: Sequence[Leased]) -> Acked:
    """Ack messages that a consumer holds.

    The claim's number stays on the row as ``acked_by``. So where the answer to an ack was lost, and the delivery tries
    again, its ack differs from every other.
    """
    by_claim = sorted(leased, key=lambda one: one.claim_id)
    is_one_claim = not leased or by_claim[0].claim_id == by_claim[-1].claim_id
    changed = 0
    missed: list[Leased] = []
    for some in _pieces(by_claim, AT_ONCE if is_one_claim else _CLAIMS_AT_ONCE):
        values: dict[str, Any] = {"seqs": [one.seq for one in some]}
        if is_one_claim:
            values["by"] = some[0].claim_id
            ours = _of_claim(context.rows)
        else:
            values["leased"] = [(one.seq, one.claim_id) for one in some]
            ours = _of_claims(context.rows)
        statement = _acking_of_claims(context.rows, context.sql, context.backend.now_sql(), ours)
        acked = connection.execute(statement, values).rowcount
        changed += acked
        if acked < len(some):
            missed += some
    lost = frozenset(missed).difference(acked_by(context, connection, missed))
    return Acked(lost, len(leased) - changed - len(lost))


def acked_by(context: TableContext, connection: sa.Connection, leased: Sequence[Leased]) -> set[Leased]:
    """Tell which messages are acked by the claims that took them. Reads only."""
    ours: set[Leased] = set()
    for some in _pieces(leased, AT_ONCE):
        values = {"seqs": [one.seq for one in some], "ids": [one.id for one in some]}
        claims = {row.seq: row.acked_by for row in connection.execute(_acked(context), values)}
        ours.update(one for one in some if claims.get(one.seq) == one.claim_id)
    return ours


def _pieces(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def back_off(context: TableContext, connection: sa.Connection, taken: Taken, delay: int, error: str | None) -> bool:
    """Give a message back to be sent again after ``delay`` ns; False where the lease was lost."""
    statement = _backing_off(context.rows, context.backend.now_sql())
    parameters = {"of": taken[0], "by": taken[1], "delay": delay, "why": error}
    return connection.execute(statement, parameters).rowcount == 1


def back_off_all(context: TableContext, connection: sa.Connection, delays: Mapping[Taken, int]) -> None:
    """Give messages back whose rows the transaction has locked, each to be sent again after a delay of its own, ns."""
    if delays:
        statement = _backing_off(context.rows, context.backend.now_sql())
        each = [{"of": seq, "by": claim_id, "delay": delay, "why": None} for (seq, claim_id), delay in delays.items()]
        connection.execute(statement, each)


@lru_cache(maxsize=256)
def _of_claim(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger)


@lru_cache(maxsize=256)
def _of_claims(rows: sa.Table) -> sa.ColumnElement[bool]:
    return sa.tuple_(rows.c.seq, rows.c.claim_id).in_(sa.bindparam("leased", expanding=True))


@lru_cache(maxsize=256)
def _acking_ids(rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.id, "ids"), not_acked(rows))
        .ordered_values(*ack_values(rows, now, by_claim=False))
    )


@lru_cache(maxsize=256)
def _acking_of_claims(
    rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int], which: sa.ColumnElement[bool]
) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.seq, "seqs"), which, not_acked(rows))
        .ordered_values(*ack_values(rows, now, by_claim=True))
    )


@lru_cache(maxsize=256)
def _acked(context: TableContext) -> sa.Select[Any, Any]:
    return sa.select(context.rows.c.seq, context.rows.c.acked_by).where(context.acked())


@lru_cache(maxsize=256)
def _backing_off(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(
            rows.c.seq == sa.bindparam("of"),
            rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger),
            not_acked(rows),
        )
        .values(
            time_next=now + sa.bindparam("delay", type_=sa.BigInteger),
            claim_id=None,
            last_error=sa.func.coalesce(sa.bindparam("why", type_=sa.Text), rows.c.last_error),
        )
    )
