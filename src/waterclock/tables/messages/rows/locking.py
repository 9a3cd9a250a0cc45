"""Locks messages in a fixed order, after their groups, so that transactions do not deadlock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import execute_all, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.group_state import UNGROUPED, by_name, lock_free_groups, lock_groups, locking_groups
from waterclock.tables.model.claims.claim import Leased
from waterclock.tables.model.row_conditions import not_acked

_Row = sa.Row[*tuple[Any, ...]]


def lock_in_order(context: TableContext, connection: SqlConnection, seqs: Sequence[int], ids: Sequence[Any]) -> None:
    """Lock messages in a fixed order, before a statement that would lock them in another order.

    Otherwise two such statements could deadlock, and the server would abort one.
    """
    if context.sql.one_writer or len(seqs) + len(ids) <= 1:
        return
    every = sorted({*seqs, *(row.seq for row in _known(context, connection, ids))})
    execute_later(connection, *[(locking_rows(context), {"seqs": list(some)}) for some in pieces(every)])


def lock_together(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], ids: Sequence[Any]
) -> None:
    """Lock the rows of several statements as `lock_in_order` does, and the groups before the rows."""
    if not context.options.groups or len(leased) + len(ids) <= 1:
        lock_in_order(context, connection, [one.seq for one in leased], ids)
        return
    every = [*leased, *_known(context, connection, ids)]
    names = [one.group_id or UNGROUPED for one in every if one.position is not None]
    execute_later(connection, locking_groups(context, names))
    lock_in_order(context, connection, [one.seq for one in every], ())


def _known(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> list[_Row]:
    return [row for some in pieces(ids) for row in connection.execute(_of_ids(context), {"ids": list(some)})]


def lock_groups_of(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> None:
    """Lock the groups of messages, before their rows, as every other operation does."""
    if context.options.groups:
        execute_later(connection, locking_groups(context, [one.group_id or UNGROUPED for one in leased]))


def still_leased(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> list[bool]:
    """Return whether each message's claim still has it, and lock it until the transaction ends."""
    lock_groups_of(context, connection, leased)
    return which_are_ours(leased, lock_seqs(context, connection, [one.seq for one in leased]))


def which_are_ours(leased: Sequence[Leased], locked: Iterable[_Row]) -> list[bool]:
    """Return whether each message's claim still has it, by the rows that `locking_rows` returned."""
    claims = {row.seq: row.claim_id for row in locked}
    return [claims.get(one.seq) == one.claim_id for one in leased]


def lock_free(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased]
) -> tuple[list[Leased], list[Leased]]:
    """Lock messages that their claims still have, and their groups, without waiting for locks.

    Returns the locked messages, and those locked elsewhere: if one of a group is, all of that group.
    """
    ours = leased
    if context.options.groups:
        placed = {one.group_id or UNGROUPED for one in leased if one.position is not None}
        free = set(lock_free_groups(context, connection, placed)) if placed else set[str]()
        ours = [one for one in leased if one.position is None or (one.group_id or UNGROUPED) in free]
    locked = {row.seq: row.claim_id for row in lock_free_rows(context, connection, [one.seq for one in ours])}
    others = [one for one in leased if one.seq not in locked]
    if not others:
        return [one for one in leased if locked[one.seq] == one.claim_id], []
    rest = pieces([one.seq for one in others])
    found = [row for some in rest for row in connection.execute(_claims(context), {"seqs": list(some)})]
    seen = {row.seq: row.claim_id for row in found}
    kept = {_place(one) for one in others if seen.get(one.seq) == one.claim_id}
    taken = [one for one in leased if locked.get(one.seq, seen.get(one.seq)) == one.claim_id]
    return [one for one in taken if _place(one) not in kept], [one for one in taken if _place(one) in kept]


def _place(one: Leased) -> object:
    return one.seq if one.position is None else one.group_id or UNGROUPED


@built_once(maxsize=256)
def _claims(context: TableContext) -> sa.Select[Any, Any]:
    return sa.select(context.rows.c.seq, context.rows.c.claim_id).where(context.unacked())


def lock_free_rows(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> Sequence[_Row]:
    """Lock those of these rows that are neither acked nor locked elsewhere; return seq and claim_id of each."""
    locking = _locking_free_rows(context)
    return [row for some in pieces(sorted(seqs)) for row in connection.execute(locking, {"seqs": list(some)})]


def lock_ids(
    context: TableContext, connection: SqlConnection, ids: Sequence[Any]
) -> tuple[Sequence[_Row], dict[str, sa.Row[Any]]]:
    """Lock messages by id, after their groups; return both, groups by name.

    New messages stay unrouted: routing excludes others until the transaction ends, and this one may wait for long.
    """
    known = connection.execute(_of_ids(context), {"ids": list(ids)}).all()
    if not context.options.groups:
        return lock_seqs(context, connection, [row.seq for row in known]), {}
    found, locked = _lock_grouped(context, connection, known, _locking_new(context))
    missing = {row.seq for row in known} - {row.seq for row in found}
    if missing:  # another transaction acks, routes or has locked them
        again = connection.execute(_of_ids(context), {"ids": list(ids)}).all()
        rest = [row for row in again if row.seq in missing]
        more, groups = _lock_grouped(context, connection, rest, locking_rows(context))
        found, locked = [*found, *more], locked | groups
    routed = {row.group_id or UNGROUPED for row in found if row.position is not None} - locked.keys()
    if routed:  # while this one waited
        locked |= lock_groups(context, connection, routed)
    return found, locked


def _lock_grouped(
    context: TableContext, connection: SqlConnection, known: Sequence[_Row], locking_new: sa.Select[*tuple[Any, ...]]
) -> tuple[list[_Row], dict[str, sa.Row[Any]]]:
    """Lock the groups of messages, then the routed messages, and with another statement the new ones.

    Waiting for a new message could lock it before its group, if it is routed meanwhile.
    """
    placed = [row for row in known if row.position is not None]
    new = [row.seq for row in known if row.position is None]
    asked = [locking_groups(context, [row.group_id or UNGROUPED for row in placed])]
    if placed:
        asked.append((locking_rows(context), {"seqs": [row.seq for row in placed]}))
    if new:
        asked.append((locking_new, {"seqs": new}))
    groups, *found = execute_all(connection, asked)
    return [row for rows in found for row in rows], by_name(groups)


def lock_seqs(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> Sequence[_Row]:
    """Lock those of these rows that are not acked; wait for locks of others."""
    return connection.execute(locking_rows(context), {"seqs": list(seqs)}).all()


@built_once(maxsize=256)
def _of_ids(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.group_id, *([rows.c.position] if context.options.groups else []))
    return sa.select(*columns).where(context.sql.any_of(rows.c.id, "ids"), not_acked(rows))


@built_once(maxsize=256)
def _locking_free_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    these = sa.select(rows.c.seq, rows.c.claim_id).where(context.unacked())
    return these.order_by(rows.c.seq).with_for_update(skip_locked=True)


@built_once(maxsize=256)
def locking_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement of `lock_seqs`, for callers that send more at once."""
    rows = context.rows
    return (
        sa.select(
            rows.c.seq,
            rows.c.id,
            rows.c.group_id,
            rows.c.claim_id,
            rows.c.position,
            rows.c.routed,
            rows.c.ack_held_at,
            rows.c.expires_at,
        )
        .where(context.unacked())
        .order_by(rows.c.seq)
        .with_for_update()
    )


@built_once(maxsize=256)
def _locking_new(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement that locks the new ones of the messages bound as ``seqs``; waits for none."""
    return locking_rows(context).where(context.rows.c.position.is_(None)).with_for_update(skip_locked=True)
