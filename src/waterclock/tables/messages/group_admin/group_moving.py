"""Moves the messages of a group to another table or group, and moves groups to other consumers."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.groups import rebalancing
from waterclock.tables.groups.group_state import settle
from waterclock.tables.groups.routing import note_closing
from waterclock.tables.messages.group_admin.group_commands import (
    GroupChange,
    choose,
    ensure_group,
    in_parts,
    sent_before,
)
from waterclock.tables.model.row_conditions import has_id, not_acked
from waterclock.tables.model.schema import settable, user_column_names

_KEPT = (
    "id", "message", "headers", "priority", "group_id", "epoch", "time_scheduled", "time_created", "last_error",
    "failed_attempts", "saved_progress", "expires_at", "closes_group",
)  # fmt: skip


def check_target(context: TableContext, target: TableContext) -> None:
    """Raise InvalidArgumentError if a table cannot take the messages."""
    if target.table_id == context.table_id:
        raise InvalidArgumentError(
            f"'to' must be a table other than the group's own, got {target.name!r}. To rename a group, use reroute"
        )
    for option in ("id_type", "payload"):
        ours, theirs = getattr(context.options, option), getattr(target.options, option)
        if ours != theirs:
            raise InvalidArgumentError(
                f"cannot move from table {context.name!r} to {target.name!r}: {option} must be equal in both, got"
                f" {ours!r} and {theirs!r}"
            )
    for column in user_column_names(context.rows):
        if column not in target.rows.c:
            raise InvalidArgumentError(
                f"cannot move to table {target.name!r}: it lacks the column {column!r} of {context.name!r}. Add the"
                " column"
            )


def move(
    context: TableContext,
    target: TableContext,
    connection: sa.Connection,
    group_id: str,
    count: int | None,
    *,
    force: bool,
    dry_run: bool,
) -> GroupChange:
    """Put messages into another table, in order, and delete them here; those whose id exists there stay."""
    chosen = choose(context, connection, group_id, count=count, force=force, dry_run=dry_run)
    rows = context.rows
    these = context.unacked()
    there = has_id(target.rows, rows.c.id)
    taken: set[int] = set()
    in_parts(
        chosen.seqs,
        lambda part: taken.update(connection.scalars(sa.select(rows.c.seq).where(these, there), {"seqs": part})),
    )
    seqs = [seq for seq in chosen.seqs if seq not in taken]
    if not dry_run:
        sent = sent_before(context, connection, seqs)
        in_parts(seqs, lambda part: _move_part(context, target, connection, part, chosen.now))
        settle(context, connection, [group_id])
        # Each table keeps its own count of deliveries; in order, because two moves may go opposite ways.
        for table_id, more in sorted({context.table_id: sent, target.table_id: -sent}.items()):
            add_totals(connection, table_id, sent=more)
    return GroupChange(len(seqs), chosen.skipped + len(taken))


def _move_part(
    context: TableContext, target: TableContext, connection: sa.Connection, seqs: Sequence[int], now: int
) -> None:
    rows = context.rows
    these = context.unacked()
    names = [*_KEPT, *settable(user_column_names(rows), target.rows)]
    due = sa.case((rows.c.claim_id.is_(None), rows.c.time_next), else_=sa.literal(now, sa.BigInteger))
    moved = sa.select(*(rows.c[name] for name in names), due).where(these).order_by(rows.c.position)
    insert = sa.insert(target.rows).from_select([*names, "time_next"], moved, include_defaults=False)
    connection.execute(insert, {"seqs": seqs})
    connection.execute(sa.delete(rows).where(these), {"seqs": seqs})


def reroute(
    context: TableContext,
    connection: sa.Connection,
    group_id: str,
    to: str,
    count: int | None,
    *,
    force: bool,
    dry_run: bool,
) -> GroupChange:
    """Append messages to another group, in order."""
    chosen = choose(context, connection, group_id, count=count, force=force, dry_run=dry_run, further=[to])
    if dry_run or not chosen.seqs:
        return GroupChange(len(chosen.seqs), chosen.skipped)
    tail: int = ensure_group(context, connection, to).tail
    rows = context.rows
    connection.execute(
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), not_acked(rows))
        .values(
            group_id=to,
            position=sa.bindparam("place"),
            time_next=sa.case((rows.c.claim_id.is_(None), rows.c.time_next), else_=chosen.now),
            claim_id=None,
            routed=0,
        ),
        [{"of": seq, "place": tail + 1 + index} for index, seq in enumerate(chosen.seqs)],
    )
    in_parts(chosen.seqs, lambda part: connection.execute(_mark_routed(context), {"seqs": part}))
    note_closing(context, connection, [to])
    settle(context, connection, sorted([group_id, to]))
    return GroupChange(len(chosen.seqs), chosen.skipped)


def _mark_routed(context: TableContext) -> sa.Update:
    # A separate statement, because the router must see a change of a routed message's group.
    rows = context.rows
    return sa.update(rows).where(context.unacked()).values(routed=1)


def rebalance(context: TableContext, connection: sa.Connection, *, dry_run: bool) -> GroupChange:
    """Move groups from consumers with many to those with few, without touching messages in flight."""
    now = context.backend.now(connection)
    moved = rebalancing.rebalance(context, connection, now, dry_run=dry_run, waits=True)
    return GroupChange(moved.at_once, moved.later)
