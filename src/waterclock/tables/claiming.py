"""Claiming messages that are due: lease, back-off and epoch move in the transaction that reads them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.database.table_catalogue import groups
from waterclock.tables.context import TableContext
from waterclock.tables.grouping import has_unrouted, leave_out, revoke, route, settle

_ABOVE_EVERY_PRIORITY = 2**31
_Row = sa.Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that was claimed.

    Attributes
    ----------
    row
        As it was before the claim.
    lease_until
        When it will be sent again, ns.
    """

    row: _Row
    lease_until: int


def claim(
    context: TableContext, connection: sa.Connection, limit: int, consumer: str | None, lease: int
) -> list[Claimed]:
    """Take up to ``limit`` messages that are due for the consumer: highest priority first, then the oldest due first.

    Parameters
    ----------
    lease
        A number that no other claim has; it fences the acks.
    """
    if context.options.groups is None:
        return _claim_rows(context, connection, limit, consumer, lease)
    return _claim_groups(context, connection, limit, consumer, lease)


def anything_due(context: TableContext, connection: sa.Connection) -> bool:
    """Say whether a claim may find something now. Reads only."""
    if context.options.groups and has_unrouted(context, connection):
        return True
    now = context.backend.now(connection)
    return any(due <= now for due in _earliest(context, connection))


def next_due(context: TableContext, connection: sa.Connection) -> int | None:
    """Find when something may be due that is not out now, ns; None where nothing waits. Reads only."""
    return min(_earliest(context, connection), default=None)


def _earliest(context: TableContext, connection: sa.Connection) -> Iterator[int]:
    statement = _earliest_group() if context.options.groups else _earliest_row(context.rows)
    for priority in _priorities(context, connection):
        found = connection.execute(statement, {"table_id": context.table_id, "of": priority}).scalar()
        if found is not None:
            yield found


def _claim_rows(
    context: TableContext, connection: sa.Connection, limit: int, consumer: str | None, lease: int
) -> list[Claimed]:
    now = context.backend.now(connection)
    due: list[_Row] = []
    for priority in _priorities(context, connection):
        due += connection.execute(
            _due_rows(context.rows), {"of": priority, "now": now, "count": limit - len(due)}
        ).all()
        if len(due) == limit:
            break
    if not due:
        return []
    rows, backoff = context.rows, context.options.backoff
    epoch = sa.func.coalesce(rows.c.epoch, 0)
    wait = context.sql.clamp(
        backoff.wait_bounds[0], backoff.wait_sql(epoch, context.sql.swing()), backoff.wait_bounds[1]
    )
    values = {"time_next": now + wait, "epoch": epoch + 1, "lease": lease, "consumer": consumer}
    until = context.sql.take(connection, rows, values, [row.seq for row in due])
    return [Claimed(row, until[row.seq]) for row in due]


def _claim_groups(
    context: TableContext, connection: sa.Connection, limit: int, consumer: str | None, lease: int
) -> list[Claimed]:
    # Only rows are inserted when messages are put; it is the consumers who route them to their groups.
    route(context, connection)
    now = context.backend.now(connection)
    claimed: list[Claimed] = []
    for priority in _priorities(context, connection):
        while len(claimed) < limit:
            free = connection.execute(
                _free_groups(),
                {"table_id": context.table_id, "of": priority, "now": now, "count": limit - len(claimed)},
            ).all()
            if not free:
                break
            claimed += _take_groups(context, connection, free, limit - len(claimed), now, consumer, lease)
    return claimed


def _take_groups(
    context: TableContext,
    connection: sa.Connection,
    free: Iterable[_Row],
    limit: int,
    now: int,
    consumer: str | None,
    lease: int,
) -> list[Claimed]:
    chosen: list[str] = []
    expected = 0
    for group in free:
        if expected >= limit:
            break
        chosen.append(group.group_id)
        expected += group.tail - group.head + 1
        if group.token is not None:
            revoke(context, connection, group.group_id, group.token)
    heads = connection.execute(
        _head_rows(context), {"table_id": context.table_id, "groups": chosen, "count": limit}
    ).all()
    claimed: list[Claimed] = []
    for group_id, members in _by_group(heads).items():
        first = _due_prefix(members, now)[: limit - len(claimed)]
        if not first:
            continue
        # The longest wait of those that go out together, so that none returns while another is still out.
        until = now + context.options.backoff.wait(max(row.epoch or 0 for row in first), random.uniform(-1, 1))  # noqa: S311  # not a secret
        leave_out(context, connection, group_id, first, until, consumer, lease)
        claimed += [Claimed(row, until) for row in first]
    # A group whose head was not found as it was noted, for example deleted by plain SQL, is noted anew.
    settle(context, connection, set(chosen) - {one.row.group_id for one in claimed})
    return claimed


def _by_group(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.group_id, []).append(row)
    return found


def _due_prefix(members: list[_Row], now: int) -> list[_Row]:
    # A message that is not due yet holds those behind it, else they would overtake it.
    for index, row in enumerate(members):
        if row.time_next is not None and row.time_next > now:
            return members[:index]
    return members


def _priorities(context: TableContext, connection: sa.Connection) -> Iterable[int]:
    # One by one from the top: usually there is one, and a caller that has enough asks no further.
    statement = _next_group_priority() if context.options.groups else _next_priority(context.rows)
    below = _ABOVE_EVERY_PRIORITY
    while True:
        found = connection.execute(statement, {"table_id": context.table_id, "below": below}).scalar()
        if found is None:
            return
        below = found
        yield found


@lru_cache(maxsize=256)
def _next_priority(rows: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(rows.c.priority)
        .where(rows.c.time_acked.is_(None), rows.c.priority < sa.bindparam("below", type_=sa.BigInteger))
        .order_by(rows.c.priority.desc())
        .limit(1)
    )


@lru_cache(maxsize=256)
def _due_rows(rows: sa.Table) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(rows)
        .where(
            rows.c.time_acked.is_(None),
            rows.c.priority == sa.bindparam("of"),
            rows.c.time_next <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=256)
def _earliest_row(rows: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(rows.c.time_next)
        .where(rows.c.time_acked.is_(None), rows.c.priority == sa.bindparam("of"))
        .order_by(rows.c.time_next)
        .limit(1)
    )


@lru_cache(maxsize=1)
def _next_group_priority() -> sa.Select[Any]:
    return (
        sa.select(groups.c.priority)
        .where(
            groups.c.table_id == sa.bindparam("table_id"),
            groups.c.priority < sa.bindparam("below", type_=sa.BigInteger),
        )
        .order_by(groups.c.priority.desc())
        .limit(1)
    )


@lru_cache(maxsize=1)
def _free_groups() -> sa.Select[Any, Any, Any, Any]:
    return (
        sa.select(groups.c.group_id, groups.c.head, groups.c.tail, groups.c.token)
        .where(
            groups.c.table_id == sa.bindparam("table_id"),
            groups.c.priority == sa.bindparam("of"),
            groups.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(groups.c.ready_at, groups.c.group_id)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=1)
def _earliest_group() -> sa.Select[Any]:
    return (
        sa.select(groups.c.ready_at)
        .where(groups.c.table_id == sa.bindparam("table_id"), groups.c.priority == sa.bindparam("of"))
        .order_by(groups.c.ready_at)
        .limit(1)
    )


def _head_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    # Positions of a group have no gaps but for acked messages, so the first ones are found without sorting a group.
    rows = context.rows
    return (
        sa.select(rows)
        .join_from(
            groups,
            rows,
            sa.and_(
                rows.c.group_id == groups.c.group_id,
                rows.c.position >= groups.c.head,
                rows.c.position < groups.c.head + sa.bindparam("count"),
                rows.c.time_acked.is_(None),
            ),
        )
        .where(groups.c.table_id == sa.bindparam("table_id"), context.sql.any_of(groups.c.group_id, "groups"))
        .order_by(groups.c.ready_at, groups.c.group_id, rows.c.position)
    )
