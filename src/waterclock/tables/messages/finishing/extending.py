"""Extends leases, for a delivery's ``extend`` and for the heartbeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from waterclock.database.driver_fast_path import Asked, execute_all, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups import consumers
from waterclock.tables.groups.group_state import UNGROUPED, is_out, settle, these_groups
from waterclock.tables.messages.finishing.acking import FARTHEST, is_leased, is_one_update
from waterclock.tables.messages.rows.locking import lock_free_rows, lock_groups_of, locking_rows
from waterclock.tables.model.claims.claim import Held, Leased
from waterclock.tables.model.row_conditions import CANCELLED

_Row = sa.Row[*tuple[Any, ...]]


def extend(context: TableContext, connection: SqlConnection, leased: Leased, duration: int) -> Held | None:
    """Extend a lease to ``duration`` ns from now, never shorten it; return None if it was lost.

    In a group, the leases of all messages that were sent together are extended.
    """
    if not context.options.groups:
        return extend_rows(context, connection, [leased], duration).get((leased.seq, leased.claim_id))
    lock_groups_of(context, connection, [leased])
    execute_later(connection, (locking_rows(context), {"seqs": [leased.seq]}))  # waits for a concurrent ack
    return extend_all(context, connection, [leased], duration).get((leased.seq, leased.claim_id))


def save(context: TableContext, connection: SqlConnection, leased: Leased, progress: str, duration: int) -> Held | None:
    """Save a handler's progress, and extend the lease as `extend` does; return None if it was lost."""
    lock_groups_of(context, connection, [leased])
    of = {"of": leased.seq, "by": leased.claim_id, "progress": progress}
    execute_later(connection, (_saving(context.rows), of))
    if context.options.groups:
        return extend(context, connection, leased, duration)
    return _extend_and_commit(context, connection, [leased], duration).get((leased.seq, leased.claim_id))


@built_once(maxsize=256)
def _saving(rows: sa.Table) -> sa.Update:
    return sa.update(rows).where(is_leased(rows)).values(saved_progress=sa.bindparam("progress", type_=sa.Text))


def extend_rows(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int
) -> dict[tuple[int, int], Held]:
    """Extend leases of one claim in a table without groups, as `extend`; return them as `extend_all`."""
    if not is_one_update(context, leased):
        return _extend_and_commit(context, connection, leased, duration)
    held = _held_by(connection.execute(_extending_rows(context), _of_claim(leased, duration)))
    if len(held) < len(leased):  # some were lost, or already have a longer lease
        held |= _held_by(connection.execute(*_asking_ends(context, leased)))
    return held


def _extend_and_commit(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int
) -> dict[tuple[int, int], Held]:
    execute_later(connection, (_extending(context, one=True), _of_claim(leased, duration)))
    [found] = execute_all(connection, [_asking_ends(context, leased)], commit=True)
    return _held_by(found)


def _of_claim(leased: Sequence[Leased], duration: int) -> dict[str, Any]:
    return {"seqs": [one.seq for one in leased], "by": leased[0].claim_id, "duration": min(duration, FARTHEST)}


def _held_by(found: Iterable[_Row]) -> dict[tuple[int, int], Held]:
    return {(row.seq, row.claim_id): Held(row.time_next, row.expires_at == CANCELLED) for row in found}


def _asking_ends(context: TableContext, leased: Sequence[Leased]) -> Asked:
    return _lease_ends(context), {"seqs": [one.seq for one in leased]}


@built_once(maxsize=256)
def _extending_rows(context: TableContext) -> ReturningUpdate[Any, Any, Any, Any]:
    return _extending(context, one=True).returning(*_of_lease(context))


def _of_lease(context: TableContext) -> tuple[sa.Column[Any], sa.Column[Any], sa.Column[Any], sa.Column[Any]]:
    rows = context.rows
    return rows.c.seq, rows.c.claim_id, rows.c.time_next, rows.c.expires_at


def _extend_groups(context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int) -> None:
    """Extend all leases of the groups in which one of these messages is still leased.

    Messages locked elsewhere keep their lease: no consumer can claim them before that transaction ends.
    """
    lock_groups_of(context, connection, leased)
    placed = {one.group_id for one in leased if one.position is not None}
    asked: list[Asked] = [(_unlocked_claimed(context), {"seqs": [one.seq for one in leased]})]
    if placed:
        asked.append((_unlocked_out(context), {"groups": sorted(name or UNGROUPED for name in placed)}))
    claimed, *others = execute_all(connection, asked)
    claims = {(one.seq, one.claim_id): one.group_id for one in leased}
    ours = [row for row in claimed if (row.seq, row.claim_id) in claims]
    if not ours:
        return
    until = ours[0].now + duration
    # By the leases: plain SQL may have moved a message into a group that is not locked.
    names = {claims[row.seq, row.claim_id] for row in ours}
    seqs = {row.seq for row in ours}
    seqs |= {row.seq for found in others for row in found if row.claim_id is not None and row.group_id in names}
    if context.options.groups == "exclusive":
        for consumer in sorted({row.consumer or "" for row in ours}):
            consumers.renew(context, connection, consumer, until)
    execute_later(connection, (_extending(context), {"seqs": sorted(seqs), "until": until}))
    settle(context, connection, [name or UNGROUPED for name in names])


@built_once(maxsize=256)
def _unlocked_claimed(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement that locks the leased ones of the messages bound as ``seqs``."""
    rows = context.rows
    columns = rows.c.seq, rows.c.claim_id, rows.c.consumer, context.backend.now_sql().label("now")
    which = context.unacked() & rows.c.claim_id.is_not(None)
    return sa.select(*columns).where(which).with_for_update(skip_locked=True)


@built_once(maxsize=256)
def _unlocked_out(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement that locks the leased messages of the groups bound as ``groups``; some may have no claim.

    The transaction has locked the groups. The search begins at their heads, because an index keeps the entries of acked
    messages for as long as a transaction holds an old snapshot.
    """
    rows = context.rows
    belongs = sa.and_(rows.c.group_id == groups.c.group_id, rows.c.position >= groups.c.head, is_out(rows))
    columns = rows.c.seq, rows.c.group_id, rows.c.claim_id
    return context.sql.of_each(groups, columns, belongs, rows.c.position, these_groups(context), skip_locked=True)


@built_once(maxsize=256)
def _extending(context: TableContext, *, one: bool = False) -> sa.Update:
    """Return the statement that extends leases to a time; ``one``: those of one claim, by a duration."""
    rows = context.rows
    which = context.unacked()
    until: sa.ColumnElement[int] = sa.bindparam("until", type_=sa.BigInteger)
    if one:
        which &= rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger)
        until = context.backend.now_sql() + sa.bindparam("duration", type_=sa.BigInteger)
    # Written so that no index answers it: a misled planner would scan all earlier due messages.
    return sa.update(rows).where(which, sa.func.coalesce(rows.c.time_next, 0) < until).values(time_next=until)


@built_once(maxsize=256)
def _lease_ends(context: TableContext) -> sa.Select[Any, Any, Any, Any]:
    rows = context.rows
    return sa.select(*_of_lease(context)).where(context.unacked(), rows.c.claim_id.is_not(None))


def extend_all(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int
) -> dict[tuple[int, int], Held]:
    """Extend leases to ``duration`` ns from now, but never shorten them; send the statements together.

    Nothing may follow in the transaction, which may be committed.

    Returns the new leases, by seq and claim, without those that were lost.
    """
    rows = context.rows
    if context.options.groups:
        _extend_groups(context, connection, leased, min(duration, FARTHEST))
    else:
        until = context.backend.now(connection) + duration
        wanted = {(one.seq, one.claim_id) for one in leased}
        # Do not wait for a transaction that acks one of them.
        locked = lock_free_rows(context, connection, [one.seq for one in leased])
        connection.execute(
            sa.update(rows).where(context.unacked(), rows.c.time_next < until).values(time_next=until),
            {"seqs": [row.seq for row in locked if (row.seq, row.claim_id) in wanted]},
        )
    [found] = execute_all(connection, [_asking_ends(context, leased)], commit=True)
    return _held_by(found)
