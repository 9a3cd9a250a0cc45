"""Sequenced groups: which messages belong to which group in which order, and when a group may be handed out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.database.table_catalogue import groups, message_tables
from waterclock.errors import OrderError
from waterclock.tables.context import TableContext

UNGROUPED = ""
"""The group of the messages that name none."""

_ROUTED_AT_ONCE = 10_000
_SETTLED_AT_ONCE = 1000


def route(context: TableContext, connection: sa.Connection) -> None:
    """Give messages that are new their places in their groups, and note what changed in groups by plain SQL.

    Enqueuing only inserts rows, so that a caller's long transaction never holds a group; this runs before each claim.
    One consumer routes at a time. A group that somebody holds just now is left to the next one.
    """
    turn = sa.select(message_tables.c.table_id).where(message_tables.c.table_id == context.table_id)
    if connection.execute(turn.with_for_update(skip_locked=True)).first() is None:
        return
    while True:
        found = connection.execute(_unrouted(context.rows)).all()
        routed = _route_some(context, connection, found)
        if len(found) < _ROUTED_AT_ONCE or not routed:
            return


def _route_some(context: TableContext, connection: sa.Connection, found: Sequence[sa.Row[Any, Any, Any, Any]]) -> int:
    fresh = {row.group_id or UNGROUPED for row in found if _is_fresh(row)}
    _add_groups(context, connection, fresh)
    tails, busy = _lock_free(context, connection, {row.group_id or UNGROUPED for row in found})
    updates: list[dict[str, Any]] = []
    for row in found:
        group, position = row.group_id or UNGROUPED, row.position
        if group in busy:
            continue
        if _is_fresh(row):
            position = tails[group] = tails[group] + 1
        updates.append({"of": row.seq, "place": position})
    if not updates:
        return 0
    nameless = [row.seq for row in found if row.group_id is None]
    if nameless:
        connection.execute(_name_group(context), {"seqs": nameless})
    connection.execute(_place(context.rows), updates)
    moved = [{"table": context.table_id, "of": group, "to": tails[group]} for group in sorted(fresh & tails.keys())]
    if moved:
        connection.execute(_move_tail(), moved)
    settle(context, connection, tails)
    return len(updates)


def _is_fresh(row: sa.Row[*tuple[Any, ...]]) -> bool:
    return row.position is None and row.time_acked is None


def lock_groups(context: TableContext, connection: sa.Connection, group_ids: Iterable[str]) -> None:
    """Keep groups from changing until the transaction ends. In order, so that nobody waits in a circle."""
    statement = (
        sa.select(groups.c.group_id)
        .where(groups.c.table_id == context.table_id, context.sql.any_of(groups.c.group_id, "groups"))
        .order_by(groups.c.group_id)
        .with_for_update()
    )
    if not context.sql.one_writer:
        connection.execute(statement, {"groups": sorted(set(group_ids))})


def has_unrouted(context: TableContext, connection: sa.Connection) -> bool:
    """Say whether `route` would find something."""
    seq, routed = context.rows.c.seq, context.rows.c.routed
    return connection.execute(sa.select(seq).where(routed == sa.literal_column("0")).limit(1)).first() is not None


def settle(context: TableContext, connection: sa.Connection, group_ids: Iterable[str]) -> None:
    """Note a group's first message anew after its messages changed: its place, its due time, and whether it is out.

    A group without messages ends: its row goes. A group is out as long as its first message is out under the group's
    token, because those that are out are always the first ones.
    """
    rows = context.rows
    head = (rows.c.group_id == groups.c.group_id) & rows.c.time_acked.is_(None)
    at_head = head & (rows.c.position == groups.c.head)
    first = sa.select(sa.func.min(rows.c.position)).where(head).scalar_subquery()
    due = sa.select(rows.c.time_next).where(at_head).scalar_subquery()
    priority = sa.select(rows.c.priority).where(at_head).scalar_subquery()
    out = sa.exists().where(at_head, rows.c.lease == groups.c.token)
    these = (groups.c.table_id == context.table_id) & context.sql.any_of(groups.c.group_id, "groups")
    statements = (
        sa.update(groups).where(these).values(head=first),
        sa.delete(groups).where(these, groups.c.head.is_(None)),
        sa.update(groups).where(these).values(ready_at=due, priority=priority),
        sa.update(groups).where(these, ~out).values(token=None, owner=None),
    )
    names = sorted(set(group_ids))
    for start in range(0, len(names), _SETTLED_AT_ONCE):
        for statement in statements:
            connection.execute(statement, {"groups": names[start : start + _SETTLED_AT_ONCE]})


def revoke(context: TableContext, connection: sa.Connection, group_id: str, token: int) -> None:
    """End what is left of a group's last lease, before the group goes to somebody else in a smaller piece."""
    rows = context.rows
    connection.execute(
        sa.update(rows)
        .where(rows.c.group_id == group_id, rows.c.lease == token, rows.c.time_acked.is_(None))
        .values(lease=None)
    )


def leave_out(
    context: TableContext,
    connection: sa.Connection,
    group_id: str,
    members: Sequence[sa.Row[Any]],
    until: int,
    consumer: str | None,
    lease: int,
) -> None:
    """Note that a group's first messages are with a consumer ``until`` then (ns)."""
    rows = context.rows
    connection.execute(
        sa.update(rows)
        .where(context.sql.any_of(rows.c.seq, "seqs"))
        .values(time_next=until, epoch=sa.func.coalesce(rows.c.epoch, 0) + 1, lease=lease, consumer=consumer),
        {"seqs": [row.seq for row in members]},
    )
    connection.execute(
        sa.update(groups)
        .where(groups.c.table_id == context.table_id, groups.c.group_id == group_id)
        .values(ready_at=until, owner=consumer, token=lease)
    )


def check_order(context: TableContext, connection: sa.Connection, seqs: Sequence[int]) -> None:
    """Refuse to ack messages while an earlier one of their group is not acked and not among them.

    Raises
    ------
    OrderError
        Naming the earlier message.
    """
    rows = context.rows
    earlier = rows.alias("earlier")
    statement = (
        sa.select(earlier.c.id, rows.c.id.label("refused"), rows.c.group_id)
        .join_from(
            rows,
            earlier,
            sa.and_(
                earlier.c.group_id == rows.c.group_id,
                earlier.c.position < rows.c.position,
                earlier.c.time_acked.is_(None),
            ),
        )
        .where(context.sql.any_of(rows.c.seq, "seqs"), ~context.sql.any_of(earlier.c.seq, "seqs"))
        .order_by(earlier.c.position)
        .limit(1)
    )
    blocking = connection.execute(statement, {"seqs": seqs}).first()
    if blocking is not None:
        raise OrderError(
            f"message {blocking.refused!r} of group {blocking.group_id!r} cannot be acked before message"
            f" {blocking.id!r}; ack that one first, or both together",
            blocking.id,
        )


def _add_groups(context: TableContext, connection: sa.Connection, group_ids: set[str]) -> None:
    rows = [{"table_id": context.table_id, "group_id": name, "tail": 0, "priority": 0} for name in sorted(group_ids)]
    if rows:
        connection.execute(context.sql.add_groups(), rows)


def _lock_free(
    context: TableContext, connection: sa.Connection, group_ids: set[str]
) -> tuple[dict[str, int], set[str]]:
    """Lock the groups that nobody holds; return their tails, and which groups somebody holds."""
    these = (groups.c.table_id == context.table_id) & context.sql.any_of(groups.c.group_id, "groups")
    names = {"groups": sorted(group_ids)}
    free = sa.select(groups.c.group_id, groups.c.tail).where(these).order_by(groups.c.group_id)
    found = connection.execute(free.with_for_update(skip_locked=True), names)
    tails = {row.group_id: row.tail for row in found}
    busy = set(connection.scalars(sa.select(groups.c.group_id).where(these), names)) - tails.keys()
    return tails, busy


@lru_cache(maxsize=256)
def _unrouted(rows: sa.Table) -> sa.Select[Any, Any, Any, Any]:
    return (
        sa.select(rows.c.seq, rows.c.group_id, rows.c.position, rows.c.time_acked)
        .where(rows.c.routed == sa.literal_column("0"))
        .order_by(rows.c.seq)
        .limit(_ROUTED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=256)
def _place(rows: sa.Table) -> sa.Update:
    return sa.update(rows).where(rows.c.seq == sa.bindparam("of")).values(position=sa.bindparam("place"), routed=1)


def _name_group(context: TableContext) -> sa.Update:
    return sa.update(context.rows).where(context.sql.any_of(context.rows.c.seq, "seqs")).values(group_id=UNGROUPED)


@lru_cache(maxsize=1)
def _move_tail() -> sa.Update:
    return (
        sa.update(groups)
        .where(groups.c.table_id == sa.bindparam("table"), groups.c.group_id == sa.bindparam("of"))
        .values(tail=sa.bindparam("to"))
    )
