"""Ending deliveries: acking, backing off, giving back, and holding on for longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.tables.context import TableContext
from waterclock.tables.grouping import UNGROUPED, check_order, lock_groups, route, settle

_Row = sa.Row[*tuple[Any, ...]]


class Held(NamedTuple):
    """A message as its consumer holds it.

    Attributes
    ----------
    seq
        Which row.
    lease
        The claim's number: whatever another one did to the row since changed it.
    group_id, position
        Its group and its place there; None in a table without groups.
    due
        When it was due before it was claimed, ns.
    """

    seq: int
    lease: int
    group_id: str | None
    position: int | None
    due: int


def ack_ids(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> int:
    """Ack messages by id, whoever has them; return how many were not acked before.

    Raises
    ------
    OrderError
        Where an earlier message of the group is not acked.
    """
    return _ack(context, connection, _lock_unacked(context, connection, ids))


def ack_held(context: TableContext, connection: sa.Connection, held: Iterable[Held]) -> set[int]:
    """Ack messages that a consumer holds; return the seqs of those that it holds no more, which stay as they are.

    Raises
    ------
    OrderError
        Where an earlier message of the group is not acked.
    """
    rows = context.rows
    by_lease: dict[int, list[Held]] = {}
    for one in held:
        by_lease.setdefault(one.lease, []).append(one)
    lost: set[int] = set()
    for lease, ours in by_lease.items():
        _lock(context, connection, ours)
        still = _lock_rows(context, connection, [one.seq for one in ours], rows.c.lease == lease)
        lost |= {one.seq for one in ours} - {row.seq for row in still}
        _ack(context, connection, still)
    return lost


def back_off(context: TableContext, connection: sa.Connection, held: Held, delay: int, error: str | None) -> bool:
    """Give a message back to be sent again after ``delay`` ns; False where the lease was lost.

    In a group those behind it go back as well, at once and without counting an attempt: they may not overtake it.
    """
    rows = context.rows
    now = context.backend.now(connection)
    _lock(context, connection, [held])
    changed = connection.execute(
        sa.update(rows)
        .where(_holds(rows, held))
        .values(time_next=now + delay, lease=None, last_error=sa.func.coalesce(error, rows.c.last_error))
    ).rowcount
    if changed and context.options.groups:
        release_behind(context, connection, [(held.group_id, held.lease, held.position)], now)
        settle(context, connection, [held.group_id or UNGROUPED])
    return changed == 1


def give_back(context: TableContext, connection: sa.Connection, held: Iterable[Held]) -> None:
    """Return messages that nobody began to handle as if they had never been sent. Leases that were lost are left."""
    rows = context.rows
    ours = list(held)
    if not ours:
        return
    _lock(context, connection, ours)
    connection.execute(
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), rows.c.lease == sa.bindparam("by"), rows.c.time_acked.is_(None))
        .values(time_next=sa.bindparam("due"), epoch=rows.c.epoch - 1, lease=None),
        [{"of": one.seq, "by": one.lease, "due": one.due} for one in ours],
    )
    if context.options.groups:
        settle(context, connection, [one.group_id or UNGROUPED for one in ours])


def extend(context: TableContext, connection: sa.Connection, held: Held, duration: int) -> int | None:
    """Hold a message for ``duration`` ns from now, never shorter than before; None where the lease was lost.

    In a group those that went out together are held together.

    Returns
    -------
    int | None
        When the lease ends now, ns.
    """
    rows = context.rows
    until = context.backend.now(connection) + duration
    _lock(context, connection, [held])
    ours = _holds(rows, held)
    if context.options.groups and connection.execute(sa.select(rows.c.seq).where(ours)).first() is not None:
        ours = (rows.c.group_id == held.group_id) & (rows.c.lease == held.lease) & rows.c.time_acked.is_(None)
    connection.execute(
        sa.update(rows).where(ours).values(time_next=sa.case((rows.c.time_next < until, until), else_=rows.c.time_next))
    )
    if context.options.groups:
        settle(context, connection, [held.group_id or UNGROUPED])
    return connection.execute(sa.select(rows.c.time_next).where(_holds(rows, held))).scalar()


def reschedule(context: TableContext, connection: sa.Connection, ids: Sequence[Any], at: int, epoch: int | None) -> int:
    """Set when messages are sent next (ns), and their epoch; return how many. Those that are out lose their lease."""
    rows = context.rows
    known = _lock_unacked(context, connection, ids)
    values: dict[str, Any] = {"time_next": at, "lease": None}
    if epoch is not None:
        values["epoch"] = epoch
    connection.execute(
        sa.update(rows).where(context.sql.any_of(rows.c.seq, "seqs")).values(values),
        {"seqs": [row.seq for row in known]},
    )
    if context.options.groups:
        out = [(row.group_id, row.lease, row.position) for row in known if row.lease is not None]
        release_behind(context, connection, out, context.backend.now(connection))
        settle(context, connection, [row.group_id or UNGROUPED for row in known])
    return len(known)


def release_behind(
    context: TableContext, connection: sa.Connection, places: Iterable[tuple[str | None, int, int | None]], now: int
) -> None:
    """Take back what is out behind places in groups: each a group, a lease and a position."""
    rows = context.rows
    for group_id, lease, position in places:
        connection.execute(
            sa.update(rows)
            .where(
                rows.c.group_id == group_id,
                rows.c.lease == lease,
                rows.c.position > position,
                rows.c.time_acked.is_(None),
            )
            .values(time_next=now, epoch=rows.c.epoch - 1, lease=None)
        )


def _ack(context: TableContext, connection: sa.Connection, messages: Sequence[_Row]) -> int:
    seqs = [row.seq for row in messages]
    if not seqs:
        return 0
    if context.options.groups:
        check_order(context, connection, seqs)
    rows = context.rows
    connection.execute(
        sa.update(rows)
        .where(context.sql.any_of(rows.c.seq, "seqs"))
        .values(time_acked=context.backend.now_sql(), time_next=None, lease=None),
        {"seqs": seqs},
    )
    if context.options.groups:
        settle(context, connection, [row.group_id or UNGROUPED for row in messages])
    return len(seqs)


def _lock_unacked(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> Sequence[_Row]:
    rows = context.rows
    statement = sa.select(rows.c.seq, rows.c.group_id).where(context.sql.any_of(rows.c.id, "ids"))
    if context.options.groups:
        route(context, connection)
    known = connection.execute(statement.where(rows.c.time_acked.is_(None)), {"ids": list(ids)}).all()
    if context.options.groups:
        lock_groups(context, connection, [row.group_id or UNGROUPED for row in known])
    return _lock_rows(context, connection, [row.seq for row in known], sa.true())


def _lock_rows(
    context: TableContext, connection: sa.Connection, seqs: Sequence[int], which: sa.ColumnElement[bool]
) -> Sequence[_Row]:
    rows = context.rows
    return connection.execute(
        sa.select(rows.c.seq, rows.c.group_id, rows.c.lease, rows.c.position)
        .where(context.sql.any_of(rows.c.seq, "seqs"), rows.c.time_acked.is_(None), which)
        .order_by(rows.c.seq)
        .with_for_update(),
        {"seqs": list(seqs)},
    ).all()


def _lock(context: TableContext, connection: sa.Connection, held: Iterable[Held]) -> None:
    # The groups before the rows, as every other operation does.
    if context.options.groups:
        lock_groups(context, connection, [one.group_id or UNGROUPED for one in held])


def _holds(rows: sa.Table, held: Held) -> sa.ColumnElement[bool]:
    return (rows.c.seq == held.seq) & (rows.c.lease == held.lease) & rows.c.time_acked.is_(None)
