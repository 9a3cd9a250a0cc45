"""Ends deliveries: acks messages, delays their retry, or returns them to the table.

In a table without groups, each of these operations is one statement, which can commit in the same round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_all, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.databases.table_dialect import NAMED_AT_ONCE, TableDialect, pieces
from waterclock.tables.groups import acking as group_acking
from waterclock.tables.groups.acking import release_behind
from waterclock.tables.groups.group_state import UNGROUPED, settle
from waterclock.tables.messages.rows.locking import (
    lock_free,
    lock_groups_of,
    lock_ids,
    lock_seqs,
    locking_rows,
    still_leased,
    which_are_ours,
)
from waterclock.tables.model.attempts import Failure
from waterclock.tables.model.claims.claim import Acked, Leased
from waterclock.tables.model.claims.epochs import times_sent_sql, uncounted_sql
from waterclock.tables.model.row_conditions import CANCELLED, ack_values, is_cancelled, not_acked, reason_to_keep
from waterclock.time import MAX_NS

_T = TypeVar("_T")
_Row = sa.Row[*tuple[Any, ...]]


FARTHEST = MAX_NS // 2
"""Maximum duration of a lease or delay, ns, a century and a half: its sum with the clock fits a bigint.

On overflow, SQLite would store a fraction, and the servers would refuse the statement.
"""

_UNEXPLAINED: dict[str, Any] = {"why": None, "tried": None}
"""The parameters of a message that returns to the table without an error."""

_CLAIMS_AT_ONCE = 500
"""Maximum messages of several claims that one statement acks: each takes two parameters, of which PostgreSQL allows
65,535 and SQLite 32,766.
"""


def run(context: TableContext, work: Callable[[SqlConnection], _T], *, several: bool = False) -> _T:
    """Run a function of this file in our own transaction.

    ``several`` says whether it has several statements even without groups. Otherwise, statements after the first only
    read, so each may commit separately.
    """
    whole = several or context.options.groups
    return context.backend.transact(work, indexed=True) if whole else context.backend.alone(work)


def is_of_one_claim(leased: Sequence[Leased]) -> bool:
    """Return whether one claim took these messages, and one statement can name them all."""
    return len({one.claim_id for one in leased}) <= 1 and len(leased) <= NAMED_AT_ONCE


def back_off_all(context: TableContext, connection: SqlConnection, delays: Sequence[tuple[Leased, int]]) -> list[bool]:
    """Return messages to the table, each after its own delay, ns; return whether each lease was still ours.

    In a group the messages behind the first go back with it, as in `back_off`, without counting an attempt. Nothing may
    follow in the transaction, which may be committed.
    """
    held = [one for one, _ in delays]
    locking = locking_rows(context), {"seqs": [one.seq for one in held]}
    if not context.options.groups:
        [locked, _] = execute_all(connection, [locking, _backing_off_each(context, delays)], commit=True)
        return which_are_ours(held, locked)
    still = still_leased(context, connection, held)
    firsts = _firsts(one for one, ours in zip(held, still, strict=True) if ours)
    execute_later(connection, _backing_off_each(context, [one for one in delays if one[0] in firsts]))
    release_behind(context, connection, [(one.group_id, one.position) for one in firsts])
    settle(context, connection, [one.group_id or UNGROUPED for one in firsts])
    execute_all(connection, [], commit=True)
    return still


def is_one_update(context: TableContext, leased: Sequence[Leased]) -> bool:
    """Return whether giving back, or extending, is one UPDATE that returns the changed rows."""
    one_claim = len({one.claim_id for one in leased}) == 1
    return one_claim and not context.options.groups and context.backend.engine.dialect.update_returning


def back_off_at_once(
    context: TableContext, connection: SqlConnection, delays: Sequence[tuple[Leased, int]]
) -> list[bool]:
    """Return messages as `back_off_all`, if that `is_one_update`."""
    pairs = [(one.seq, min(delay, FARTHEST)) for one, delay in delays]
    of = {"pairs": pairs, "by": delays[0][0].claim_id}
    changed = set(connection.scalars(_backing_off_pairs(context), of))
    return [one.seq in changed for one, _ in delays]


@built_once(maxsize=256)
def _backing_off_pairs(context: TableContext) -> sa.Update:
    rows = context.rows
    update, delay = context.sql.update_pairs(rows)
    back = {"time_next": context.backend.now_sql() + delay, "claim_id": None}
    return update.where(_of_claim(rows), not_acked(rows)).values(back).returning(rows.c.seq)


def _firsts(leased: Iterable[Leased]) -> set[Leased]:
    """Return the first of these messages in each group, and all ungrouped ones."""
    firsts: dict[Any, Leased] = {}
    for one in leased:
        place = one.seq if one.position is None else one.group_id or UNGROUPED
        firsts[place] = min(firsts.get(place, one), one, key=lambda one: one.position or 0)
    return set(firsts.values())


def ack_ids(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> int:
    """Ack messages by id, leased or not; return how many were not acked before.

    Raises `OrderError` if an earlier message of the group is not acked.
    """
    if not context.options.groups:
        return _ack_ids_of_rows(context, connection, ids)
    found, noted = lock_ids(context, connection, ids)
    return group_acking.ack_rows(context, connection, found, noted)


def ack_leased(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> Acked:
    """Ack messages for the consumer that took them.

    Raises `OrderError` if an earlier message of the group is not acked.
    """
    if not context.options.groups:
        return _ack_leased_rows(context, connection, list(leased))
    return group_acking.ack_leased(context, connection, list(leased))


def check_sight(context: TableContext, connection: SqlConnection, lost: Collection[Leased]) -> None:
    """Check that leases which seem lost in a caller's transaction are really lost.

    Raises `UnavailableError` if the transaction began before the messages were claimed or put. Raises
    `sqlalchemy.exc.DBAPIError` if the database itself reports that.
    """
    if not lost or not context.backend.dialect.keeps_to_a_snapshot(connection):
        return
    seqs = [one.seq for one in lost]
    lock_seqs(context, connection, seqs)  # PostgreSQL refuses to lock rows that changed since
    seen = unacked(context, connection, seqs).keys() | _claims_acked(context, connection, list(lost)).keys()
    with context.backend.snapshot() as present:
        rows = unacked(context, present, seqs)
    for one in lost:
        if one.seq not in seen and one.seq in rows and rows[one.seq].claim_id == one.claim_id:
            raise UnavailableError(
                f"cannot ack message {one.id!r} of table {context.name!r}: the transaction began before the message was"
                " put, and cannot see the message. Roll back, and ack in a new transaction"
            )


def acked_by(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Return the messages that are acked by the claims that took them. Reads only."""
    if not context.options.groups:
        return _rows_acked_by(context, connection, leased)
    return group_acking.acked_by(context, connection, leased)


def back_off(
    context: TableContext, connection: SqlConnection, leased: Leased, delay: int, failure: Failure | None
) -> bool:
    """Return a message to the table, to be sent again after ``delay`` ns; return False if the lease was lost.

    In a group, messages behind it go back at once, without counting an attempt: they must not overtake it.
    """
    reasons = _UNEXPLAINED if failure is None else {"why": failure.error, "tried": failure.attempts}
    statement = _backing_off(context.rows, context.backend.now_sql())
    return _return(context, connection, leased, statement, {"delay": min(delay, FARTHEST), **reasons})


def put_off(context: TableContext, connection: SqlConnection, leased: Leased, delay: int) -> bool:
    """Return a message to the table, to be sent after ``delay`` ns; return False if the lease was lost.

    It counts as not sent: neither its attempts nor its back-off change. In a group, messages behind it go back as well,
    as in `back_off`.
    """
    statement = _putting_off(context.rows, context.backend.now_sql())
    return _return(context, connection, leased, statement, {"delay": min(delay, FARTHEST)})


def _return(
    context: TableContext, connection: SqlConnection, leased: Leased, statement: sa.Update, values: dict[str, Any]
) -> bool:
    lock_groups_of(context, connection, [leased])
    changed = connection.execute(statement, {"of": leased.seq, "by": leased.claim_id, **values}).rowcount == 1
    if changed and context.options.groups:
        release_behind(context, connection, [(leased.group_id, leased.position)])
        settle(context, connection, [leased.group_id or UNGROUPED])
    return changed


def give_back(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> None:
    """Return messages that were not started, as if never sent. Messages whose lease is lost stay."""
    rows = context.rows
    ours = sorted(leased, key=attrgetter("seq"))
    if not ours:
        return
    lock_groups_of(context, connection, ours)
    connection.execute(
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), rows.c.claim_id == sa.bindparam("by"), not_acked(rows))
        .values(time_next=sa.bindparam("due"), epoch=uncounted_sql(rows.c.epoch), claim_id=None),
        [{"of": one.seq, "by": one.claim_id, "due": one.due} for one in ours],
    )
    context.marks.forget()  # they are due before later messages
    if context.options.groups:
        settle(context, connection, [one.group_id or UNGROUPED for one in ours])


def leave_behind(
    context: TableContext, connection: SqlConnection, unstarted: Sequence[Leased], started: Sequence[Leased]
) -> set[Leased]:
    """Return a leaving consumer's messages to the table; messages that it has begun to handle back off.

    Returns messages that another transaction has locked, which stay.
    """
    ours, kept = lock_free(context, connection, [*unstarted, *started])
    still = set(ours)
    give_back(context, connection, [one for one in unstarted if one in still])
    for one in started:
        if one in still:
            back_off(context, connection, one, 0, None)
    return set(kept)


def unacked(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> dict[int, _Row]:
    """Return claim_id, epoch, time_next and expires_at of the unacked rows, by seq."""
    return {row.seq: row for row in connection.execute(_unacked(context), {"seqs": list(seqs)})}


def cancelled(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Return the leased messages that were cancelled. Reads only."""
    claims = connection.execute(_cancelled(context), {"seqs": [one.seq for one in leased]}).all()
    found = {(row.seq, row.claim_id) for row in claims}
    return {one for one in leased if (one.seq, one.claim_id) in found}


@built_once(maxsize=256)
def _cancelled(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    return sa.select(rows.c.seq, rows.c.claim_id).where(context.unacked(), is_cancelled(rows))


def reschedule(context: TableContext, connection: SqlConnection, ids: Sequence[Any], at: int, epoch: int | None) -> int:
    """Set when messages are sent next (ns), and their epoch; return how many. Leased ones lose their lease.

    Cancelled ones lose it, too, but are not counted, because they are not sent again.
    """
    rows = context.rows
    known, _ = lock_ids(context, connection, ids)
    sent: Any = 0
    values: dict[str, Any] = {"time_next": at, "claim_id": None}
    these = context.unacked()
    seqs = {"seqs": [row.seq for row in known]}
    if epoch is not None:
        values["epoch"] = epoch
        sent = connection.execute(sa.select(times_sent_sql(rows.c.epoch)).where(these), seqs).scalar()
    connection.execute(sa.update(rows).where(these).values(values), seqs)
    context.marks.forget()
    if context.options.groups:
        out = [(row.group_id, row.position) for row in known if row.claim_id is not None]
        release_behind(context, connection, out)
        settle(context, connection, [row.group_id or UNGROUPED for row in known if row.position is not None])
    if epoch is not None:
        add_totals(connection, context.table_id, sent=int(sent or 0) - epoch * len(known))
    return sum(row.expires_at != CANCELLED for row in known)


@built_once(maxsize=256)
def _unacked(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.claim_id, rows.c.epoch, rows.c.time_next, rows.c.expires_at)
    return sa.select(*columns).where(context.unacked())


def _ack_ids_of_rows(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> int:
    """Ack messages by id; return how many were not acked before. Consumers that have one lose the lease.

    Nothing may follow in the transaction, which may be committed.
    """
    statement = _acking_ids(context.rows, context.sql, context.backend.now_sql())
    asked = [(statement, {"ids": list(some)}) for some in pieces(ids)]
    return sum(found.rowcount for found in execute_all(connection, asked, commit=True))


def _ack_leased_rows(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> Acked:
    """Ack messages that a consumer holds.

    The claim's id stays on the row as ``acked_by``. So a delivery whose answer was lost recognizes its own ack when it
    retries.
    """
    is_one_claim = len({one.claim_id for one in leased}) <= 1
    changed = 0
    missed: list[Leased] = []
    for some in pieces(sorted(leased, key=attrgetter("seq")), None if is_one_claim else _CLAIMS_AT_ONCE):
        rows, sql, now, seqs = context.rows, context.sql, context.backend.now_sql(), [one.seq for one in some]
        if len(some) == 1:  # as a plain value, because a list costs as much as the rest of the statement on SQLite
            asked = _acking_one(rows, now), {"of": some[0].seq, "by": some[0].claim_id}
        elif is_one_claim:
            asked = _acking_of_claims(rows, sql, now, _of_claim(rows)), {"seqs": seqs, "by": some[0].claim_id}
        else:
            leases = [(one.seq, one.claim_id) for one in some]
            asked = _acking_of_claims(rows, sql, now, _of_claims(rows)), {"seqs": seqs, "leased": leases}
        acked = connection.execute(*asked).rowcount
        changed += acked
        if acked < len(some):
            missed += some
    if not missed:
        return Acked(frozenset(), 0)
    lost = frozenset(missed).difference(_rows_acked_by(context, connection, missed))
    return Acked(lost, len(leased) - changed - len(lost))


def _rows_acked_by(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Return the messages that are acked by the claims that took them. Reads only."""
    ours: set[Leased] = set()
    for some in pieces(leased):
        claims = _claims_acked(context, connection, some)
        ours.update(one for one in some if claims.get(one.seq) == one.claim_id)
    return ours


def _claims_acked(context: TableContext, connection: SqlConnection, some: Sequence[Leased]) -> dict[int, int | None]:
    """Return the claim that acked each message, by seq; unacked ones are missing."""
    values = {"seqs": [one.seq for one in some], "ids": [one.id for one in some]}
    return {row.seq: row.acked_by for row in connection.execute(_acked(context), values)}


def _backing_off_each(context: TableContext, delays: Sequence[tuple[Leased, int]]) -> Asked:
    each = [{"of": one.seq, "by": one.claim_id, "delay": min(delay, FARTHEST), **_UNEXPLAINED} for one, delay in delays]
    return _backing_off(context.rows, context.backend.now_sql()), each


@built_once(maxsize=256)
def _of_claim(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger)


def is_leased(rows: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that the row bound as ``of`` is unacked, and that the claim ``by`` still has it."""
    return (rows.c.seq == sa.bindparam("of")) & _of_claim(rows) & not_acked(rows)


@built_once(maxsize=256)
def _of_claims(rows: sa.Table) -> sa.ColumnElement[bool]:
    return sa.tuple_(rows.c.seq, rows.c.claim_id).in_(sa.bindparam("leased", expanding=True))


@built_once(maxsize=256)
def _acking_ids(rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.id, "ids"), not_acked(rows))
        .ordered_values(*ack_values(rows, now, by_claim=False))
    )


@built_once(maxsize=256)
def _acking_one(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return sa.update(rows).where(is_leased(rows)).ordered_values(*ack_values(rows, now, by_claim=True))


@built_once(maxsize=256)
def _acking_of_claims(
    rows: sa.Table, sql: TableDialect, now: sa.ColumnElement[int], which: sa.ColumnElement[bool]
) -> sa.Update:
    return (
        sa.update(rows)
        .where(sql.any_of(rows.c.seq, "seqs"), which, not_acked(rows))
        .ordered_values(*ack_values(rows, now, by_claim=True))
    )


@built_once(maxsize=256)
def _acked(context: TableContext) -> sa.Select[Any, Any]:
    return sa.select(context.rows.c.seq, context.rows.c.acked_by).where(context.acked())


@built_once(maxsize=256)
def _backing_off(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(is_leased(rows))
        .values(
            time_next=now + sa.bindparam("delay", type_=sa.BigInteger),
            claim_id=None,
            last_error=sa.func.coalesce(reason_to_keep(rows, sa.bindparam("why", type_=sa.Text)), rows.c.last_error),
            failed_attempts=sa.func.coalesce(sa.bindparam("tried", type_=sa.Text), rows.c.failed_attempts),
        )
    )


@built_once(maxsize=256)
def _putting_off(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(is_leased(rows))
        .values(
            time_next=now + sa.bindparam("delay", type_=sa.BigInteger), epoch=uncounted_sql(rows.c.epoch), claim_id=None
        )
    )
