"""Acks messages of groups, in the order that the table's ``ack_order`` requires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.driver_fast_path import DirectConnection, execute_all, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import OrderError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import UNGROUPED, by_name, locking_groups, must_stay, settle, settle_starts
from waterclock.tables.groups.routing import group_of
from waterclock.tables.model.claims.claim import Acked, Leased
from waterclock.tables.model.claims.epochs import uncounted_sql
from waterclock.tables.model.row_conditions import ack_marks, ack_values, is_expired
from waterclock.time import MAX_NS

_Row = sa.Row[*tuple[Any, ...]]


def ack_leased(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> Acked:
    """Ack messages for the consumer that took them.

    Raises `OrderError` if an earlier message of the group is not acked and ``ack_order`` is strict.
    """
    if not leased:
        return Acked(frozenset(), 0)
    seqs = [one.seq for one in leased]
    lock = locking_groups(context, [one.group_id or UNGROUPED for one in leased])
    if context.options.ack_order != "hold" and len({one.claim_id for one in leased}) == 1:
        ack = _acking_ours(context), {"seqs": seqs, "by": leased[0].claim_id}
        if isinstance(connection, DirectConnection):  # a caller could commit acks that are out of order
            groups, acked = execute_all(connection, [lock, ack])
            return _judge(context, connection, leased, by_name(groups), acked.rowcount)
        noted = by_name(connection.execute(*lock))
        if _are_starts(noted, leased):
            return _judge(context, connection, leased, noted, connection.execute(*ack).rowcount)
    groups, found = execute_all(connection, [lock, (_to_ack(context), {"seqs": sorted(set(seqs))})])
    places = {(one.seq, one.claim_id) for one in leased}
    ours = [row for row in found if (row.seq, row.claim_id) in places]
    _ack(context, connection, ours, by_name(groups), by_claim=True)
    still = {(row.seq, row.claim_id) for row in ours}
    lost = _lost(context, connection, [one for one in leased if (one.seq, one.claim_id) not in still])
    return Acked(lost, len(leased) - len(ours) - len(lost))


def _judge(
    context: TableContext,
    connection: SqlConnection,
    leased: Sequence[Leased],
    noted: dict[str, sa.Row[Any]],
    changed: int,
) -> Acked:
    """Ack the messages of one claim; raise OrderError if their order forbids it, which rolls back the acks."""
    lost = frozenset[Leased]() if changed == len(leased) else _lost(context, connection, leased)
    ours = [one for one in leased if one not in lost]
    if context.options.ack_order == "strict" and (lost or not _are_starts(noted, leased)):
        _check_order(context, connection, ours)
    if changed:
        _settle_acked(context, connection, ours, noted)
    return Acked(lost, len(leased) - changed - len(lost))


def acked_by(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Return the messages that are acked, or whose ack is held back, by the claims that took them. Reads only."""
    if not leased:
        return set()
    chosen = {"seqs": [one.seq for one in leased], "ids": [one.id for one in leased]}
    found = {(row.seq, row.acked_by) for row in connection.execute(_acked(context), chosen)}
    if context.options.ack_order == "hold":
        found |= {(row.seq, row.acked_by) for row in connection.execute(_held_back(context), chosen)}
    return {one for one in leased if (one.seq, one.claim_id) in found}


def ack_rows(
    context: TableContext, connection: SqlConnection, found: Sequence[_Row], noted: dict[str, sa.Row[Any]]
) -> int:
    """Ack messages whose groups and rows are locked; return how many. Consumers that have one lose the lease.

    Raises `OrderError` as in `ack_leased`.
    """
    ours = [row for row in found if row.ack_held_at is None]
    new = [row for row in ours if row.position is None and row.routed != 1]
    passing = _passing(context, connection, new, [row.seq for row in ours]) if new else {}
    if context.options.ack_order == "strict":
        for name, (seq, blocking) in passing.items():
            _refuse(context, connection, name, seq, blocking)
    later = [row for row in new if (row.group_id or UNGROUPED) in passing]
    _ack(context, connection, ours, noted, by_claim=False, later=later)
    return len(ours)


def release_behind(
    context: TableContext,
    connection: SqlConnection,
    places: Iterable[tuple[str | None, int | None]],
    *,
    started: bool = False,  # whether this counts as an attempt
) -> None:
    """Take back the leased messages behind given places, each a group and a position."""
    for group_id, position in places:
        if position is not None:
            at = {"of": group_id, "behind": position, "uncounted": 0 if started else 1}
            execute_later(connection, (_releasing(context), at))


def _are_starts(noted: dict[str, sa.Row[Any]], messages: Sequence[Leased | _Row]) -> bool:
    """Return whether messages are the first of their groups without a gap.

    Otherwise a query must show whether the messages in a gap were acked before.
    """
    starting = _starting(noted, messages)
    return all(one.position is not None and (one.group_id or UNGROUPED) in starting for one in messages)


def _starting(noted: dict[str, sa.Row[Any]], messages: Sequence[Leased | _Row]) -> set[str]:
    """Return the groups that begin with these messages, without a gap."""
    places: dict[str, list[int]] = {}
    for one in messages:
        if one.position is not None:
            places.setdefault(one.group_id or UNGROUPED, []).append(one.position)
    return {
        name
        for name, positions in places.items()
        if name in noted
        and min(positions) == noted[name].head
        and len(positions) == 1 + max(positions) - min(positions)
    }


def _lost(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> frozenset[Leased]:
    return frozenset(leased).difference(acked_by(context, connection, leased))


def _ack(
    context: TableContext,
    connection: SqlConnection,
    messages: Sequence[_Row],
    noted: dict[str, sa.Row[Any]],
    *,
    by_claim: bool,
    later: Sequence[_Row] = (),
) -> None:
    if not messages:
        return
    chosen = {"seqs": [row.seq for row in messages]}
    grouped = [row for row in messages if row.position is not None]
    if context.options.ack_order == "hold":
        # Settling acks those with nothing before them. New messages that overtake others get their places first. If
        # settling is left to the next claim, the first messages of a group are acked here.
        starting = _starting(noted, grouped) if _leaves_settling(context, connection) else set[str]()
        held = {row.seq for row in (*grouped, *later) if (row.group_id or UNGROUPED) not in starting}
        connection.execute(_holding_back(context, by_claim=by_claim), {"seqs": sorted(held)})
        chosen["seqs"] = [row.seq for row in messages if row.seq not in held]
    elif context.options.ack_order == "strict" and not _are_starts(noted, messages):
        _check_order(context, connection, grouped)
    execute_later(connection, (_acking(context, by_claim=by_claim), chosen))
    _settle_acked(context, connection, grouped, noted)


def _settle_acked(
    context: TableContext, connection: SqlConnection, acked: Iterable[Leased | _Row], noted: dict[str, sa.Row[Any]]
) -> None:
    places = [(one.group_id or UNGROUPED, one.position, one.seq) for one in acked if one.position is not None]
    if places and _leaves_settling(context, connection):
        connection.execute(_leaving(context), {"seqs": [seq for _, _, seq in places]})
        return
    last: dict[str, int] = {}
    for name, position, _ in places:
        last[name] = max(last.get(name, position), position)
    ending = {name for name, position in last.items() if name not in noted or noted[name].tail <= position}
    if context.options.groups == "sequenced" and context.options.ack_order == "strict":
        staying = {name for name in ending if name in noted and must_stay(noted[name])}
        settle_starts(context, connection, last.keys() - (ending - staying), ending - staying, noted)
    else:
        # With acks that were held back, acking an earlier message may finish a group.
        may_end = bool(ending) or context.options.ack_order == "hold"
        settle(context, connection, last, may_end=may_end, noted=noted)


def _leaves_settling(context: TableContext, connection: SqlConnection) -> bool:
    """Return whether settling is left to the next claim, as after plain SQL.

    In a caller's transaction, the server may lock rows and gaps that settling only reads, or show the acks from the
    start of the transaction.
    """
    return context.sql.deletes_wait and not context.backend.is_ours(connection)


def _check_order(context: TableContext, connection: SqlConnection, messages: Iterable[Leased | _Row]) -> None:
    """Raise OrderError if messages, acked or not, would overtake others."""
    last: dict[str, tuple[int, int]] = {}
    seqs: list[int] = []
    for one in messages:
        seqs.append(one.seq)
        if one.position is not None:
            name = one.group_id or UNGROUPED
            last[name] = max(last.get(name, (-1, -1)), (one.position, one.seq))
    for name, (position, seq) in sorted(last.items()):
        at = {"of": name, "before": position, "seqs": seqs}
        _refuse(context, connection, name, seq, connection.execute(_blocking(context), at).scalar())


def _passing(
    context: TableContext, connection: SqlConnection, new: Sequence[_Row], seqs: Sequence[int]
) -> dict[str, tuple[int, Any]]:
    """Return the groups in which messages without a place overtake others that have one or were put earlier.

    Returns, by group, the seq of the last such message, and the id of one before it that is not among ``seqs``.
    """
    last: dict[str, int] = {}
    for row in new:
        name = row.group_id or UNGROUPED
        if name != UNGROUPED or context.options.ungrouped != "free":
            last[name] = max(last.get(name, row.seq), row.seq)
    passing: dict[str, tuple[int, Any]] = {}
    for name, seq in sorted(last.items()):
        at = {"of": name, "before": MAX_NS, "seqs": seqs}
        blocking = connection.execute(_blocking(context), at).scalar()
        if blocking is None:
            blocking = connection.execute(_blocking_new(context), {**at, "before": seq}).scalar()
        if blocking is not None:
            passing[name] = seq, blocking
    return passing


def _refuse(context: TableContext, connection: SqlConnection, name: str, seq: int, blocking: Any) -> None:
    if blocking is not None:
        rows = context.rows
        refused = connection.execute(sa.select(rows.c.id).where(rows.c.seq == seq)).scalar()
        raise OrderError(
            f"cannot ack message {refused!r} of group {quoted(name)} before message {blocking!r}. Ack message"
            f" {blocking!r} first, or both messages together",
            blocking,
        )


@built_once(maxsize=256)
def _to_ack(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    return (
        sa.select(rows.c.seq, rows.c.group_id, rows.c.claim_id, rows.c.position, rows.c.ack_held_at)
        .where(context.unacked())
        .order_by(rows.c.seq)
        .with_for_update()
    )


@built_once(maxsize=256)
def _acked(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    return sa.select(rows.c.seq, rows.c.acked_by).where(context.acked())


@built_once(maxsize=256)
def _held_back(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    return sa.select(rows.c.seq, rows.c.acked_by).where(context.unacked(), rows.c.ack_held_at.is_not(None))


@built_once(maxsize=256)
def _acking_ours(context: TableContext) -> sa.Update:
    rows = context.rows
    by = sa.bindparam("by", type_=sa.BigInteger)
    acked = ack_values(rows, context.backend.now_sql(), by_claim=True)
    return sa.update(rows).where(context.unacked(), rows.c.claim_id == by).ordered_values(*acked)


@built_once(maxsize=256)
def _acking(context: TableContext, *, by_claim: bool) -> sa.Update:
    acked = ack_values(context.rows, context.backend.now_sql(), by_claim=by_claim)
    return sa.update(context.rows).where(context.unacked()).ordered_values(*acked)


@built_once(maxsize=256)
def _leaving(context: TableContext) -> sa.Update:
    rows = context.rows
    return sa.update(rows).where(context.sql.any_of(rows.c.seq, "seqs")).values(routed=context.sql.changed)


@built_once(maxsize=256)
def _holding_back(context: TableContext, *, by_claim: bool) -> sa.Update:
    rows = context.rows
    held = ((rows.c.ack_held_at, context.backend.now_sql()), *ack_marks(rows, by_claim=by_claim))
    return sa.update(rows).where(context.unacked()).ordered_values(*held)


@built_once(maxsize=256)
def _blocking(context: TableContext) -> sa.Select[Any]:
    # Group by group: for a join of all, a planner without statistics reads whole groups.
    rows = context.rows
    return (
        sa.select(rows.c.id)
        .where(
            rows.c.group_id == sa.bindparam("of"),
            rows.c.position < sa.bindparam("before", type_=sa.BigInteger),
            rows.c.time_acked.is_(None),
            ~context.sql.any_of(rows.c.seq, "seqs"),
            ~is_expired(rows, context.backend.now_sql()),
        )
        .order_by(rows.c.position)
        .limit(1)
    )


@built_once(maxsize=256)
def _blocking_new(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return (
        sa.select(rows.c.id)
        .where(
            context.sql.is_unrouted(rows),
            rows.c.seq < sa.bindparam("before", type_=sa.BigInteger),
            group_of(rows) == sa.bindparam("of"),
            rows.c.position.is_(None),
            rows.c.time_acked.is_(None),
            ~context.sql.any_of(rows.c.seq, "seqs"),
            ~is_expired(rows, context.backend.now_sql()),
        )
        .order_by(rows.c.seq)
        .limit(1)
    )


@built_once(maxsize=256)
def _releasing(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(
            rows.c.group_id == sa.bindparam("of"),
            rows.c.position > sa.bindparam("behind", type_=sa.BigInteger),
            rows.c.time_acked.is_(None),
            rows.c.claim_id.is_not(None),
        )
        .values(
            time_next=context.backend.now_sql(),
            epoch=uncounted_sql(rows.c.epoch, sa.bindparam("uncounted", type_=sa.BigInteger)),
            claim_id=None,
        )
    )
