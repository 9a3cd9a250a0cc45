"""Ending deliveries: acking, backing off, giving back, and holding on for longer.

In a table without groups each is one statement, so that it can commit in the same round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from waterclock.database.direct import Asked, execute_all, execute_later
from waterclock.database.kept import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.databases.table_dialect import TableDialect
from waterclock.tables.groups import acking as group_acking
from waterclock.tables.groups import consumers
from waterclock.tables.groups.acking import release_behind
from waterclock.tables.groups.heads import UNGROUPED, by_name, is_out, lock_groups, locking_groups, settle
from waterclock.tables.groups.routing import route
from waterclock.tables.model.leased import Acked, Held, Leased
from waterclock.tables.model.schema import CANCELLED, ack_values, is_cancelled, not_acked
from waterclock.time import MAX_NS

_T = TypeVar("_T")
_Row = sa.Row[*tuple[Any, ...]]

Taken = tuple[int, int]
"""Which row, and the number of the claim that took it."""


FARTHEST = MAX_NS // 2
"""For how long a message is held or put off at the most, ns, a century and a half: added to the clock it fits a bigint,
for whose overflow SQLite stores a fraction and the servers refuse the statement."""

AT_ONCE = 5000
"""Messages that one statement acks: a server refuses a statement that is too long, and its planner has bounds, too."""

_CLAIMS_AT_ONCE = 500
"""Messages of several claims that one statement acks, because each is two parameters, of which PostgreSQL takes 65,535
and SQLite 32,766."""


def run(context: TableContext, work: Callable[[SqlConnection], _T], *, several: bool = False) -> _T:
    """Run a function of this file in a transaction of our own.

    Parameters
    ----------
    several
        Whether it is several statements also without groups; else what follows the first only looks, so that each may
        commit by itself.
    """
    whole = several or context.options.groups
    return context.backend.transact(work, indexed=True) if whole else context.backend.alone(work)


def is_of_one_claim(leased: Sequence[Leased]) -> bool:
    """Say whether one claim took these, no more than a statement acks."""
    return len({one.claim_id for one in leased}) <= 1 and len(leased) <= AT_ONCE


def lock_rows(context: TableContext, connection: SqlConnection, seqs: Sequence[int], ids: Sequence[Any]) -> None:
    """Lock messages in one order, for any order of the caller's, before statements that would lock them in another.

    Else two of them could wait for each other, and the server would end one.
    """
    if context.sql.one_writer or len(seqs) + len(ids) <= 1:
        return
    every = sorted({*seqs, *(row.seq for row in _known(context, connection, ids))})
    execute_later(connection, *[(_locked_rows(context), {"seqs": list(some)}) for some in _pieces(every, AT_ONCE)])


def lock_together(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], ids: Sequence[Any]
) -> None:
    """Lock what several statements are about as `lock_rows` does, and the groups before the rows."""
    if not context.options.groups or len(leased) + len(ids) <= 1:
        lock_rows(context, connection, [one.seq for one in leased], ids)
        return
    every = [*leased, *_known(context, connection, ids)]
    names = [one.group_id or UNGROUPED for one in every if one.position is not None]
    execute_later(connection, locking_groups(context, names))
    lock_rows(context, connection, [one.seq for one in every], ())


def _known(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> list[_Row]:
    return [row for some in _pieces(ids, AT_ONCE) for row in connection.execute(_of_ids(context), {"ids": list(some)})]


def back_off_all(context: TableContext, connection: SqlConnection, delays: Sequence[tuple[Leased, int]]) -> list[bool]:
    """Give messages back, each to be sent again after a delay of its own, ns; say of which the lease was ours.

    The first one of a group takes those behind it along, as `back_off` does: their leases are lost with that. Nothing
    may follow in the transaction, which may be committed.
    """
    held = [one for one, _ in delays]
    locking = _locked_rows(context), {"seqs": [one.seq for one in held]}
    if not context.options.groups:
        [locked, _] = execute_all(connection, [locking, _backing_off_each(context, delays)], commit=True)
        return _still(held, locked)
    still = still_leased(context, connection, held)
    firsts = _firsts(one for one, ours in zip(held, still, strict=True) if ours)
    execute_later(connection, _backing_off_each(context, [one for one in delays if one[0] in firsts]))
    release_behind(context, connection, [(one.group_id, one.position) for one in firsts])
    settle(context, connection, [one.group_id or UNGROUPED for one in firsts])
    execute_all(connection, [], commit=True)
    return [one in firsts for one in held]


def is_one_update(context: TableContext, leased: Sequence[Leased]) -> bool:
    """Say whether giving these back, or holding them, is one statement: an update that says which it changed."""
    one_claim = len({one.claim_id for one in leased}) == 1
    return one_claim and not context.options.groups and context.backend.engine.dialect.update_returning


def back_off_at_once(
    context: TableContext, connection: SqlConnection, delays: Sequence[tuple[Leased, int]]
) -> list[bool]:
    """Give messages back as `back_off_all` does, where that `is_one_update`."""
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
    """Choose those of messages before which none of these is in their groups; what is in no group has none."""
    firsts: dict[Any, Leased] = {}
    for one in leased:
        place = one.seq if one.position is None else one.group_id or UNGROUPED
        firsts[place] = min(firsts.get(place, one), one, key=lambda one: one.position or 0)
    return set(firsts.values())


def ack_ids(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> int:
    """Ack messages by id, also those that a consumer has; return how many were not acked before.

    Raises
    ------
    OrderError
        Where an earlier message of the group is not acked.
    """
    if not context.options.groups:
        return _ack_ids_of_rows(context, connection, ids)
    found, noted = lock_unacked(context, connection, ids)
    return group_acking.ack_rows(context, connection, found, noted)


def ack_leased(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> Acked:
    """Ack messages for the consumer that took them.

    Raises
    ------
    OrderError
        Where an earlier message of the group is not acked.
    """
    if not context.options.groups:
        return _ack_leased_rows(context, connection, list(leased))
    return group_acking.ack_leased(context, connection, list(leased))


def check_sight(context: TableContext, connection: SqlConnection, lost: Collection[Leased]) -> None:
    """Make sure that messages whose lease seems lost to a transaction of the caller's are so to others, too.

    Raises
    ------
    UnavailableError
        Where the transaction sees a state from before they were claimed or put.
    sqlalchemy.exc.DBAPIError
        Where it does, and the database itself says so.
    """
    if not lost or not context.backend.dialect.keeps_to_a_snapshot(connection):
        return
    seqs = [one.seq for one in lost]
    _lock_rows(context, connection, seqs)  # PostgreSQL refuses to lock what was changed since
    seen = unacked(context, connection, seqs).keys() | _claims_acked(context, connection, list(lost)).keys()
    with context.backend.snapshot() as present:
        rows = unacked(context, present, seqs)
    for one in lost:
        if one.seq not in seen and one.seq in rows and rows[one.seq].claim_id == one.claim_id:
            raise UnavailableError(
                f"ack: message {one.id!r} of {context.name!r} was put after the transaction in which it is to be acked"
                " began to read, which therefore does not see it; roll it back, and ack in one that begins later"
            )


def acked_by(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Tell which messages are acked by the claims that took them. Reads only."""
    if not context.options.groups:
        return _rows_acked_by(context, connection, leased)
    return group_acking.acked_by(context, connection, leased)


def back_off(context: TableContext, connection: SqlConnection, leased: Leased, delay: int, error: str | None) -> bool:
    """Give a message back to be sent again after ``delay`` ns; False where the lease was lost.

    In a group those behind it go back as well, at once and without counting an attempt: they may not overtake it.
    """
    _lock(context, connection, [leased])
    changed = _back_off_row(context, connection, (leased.seq, leased.claim_id), delay, error)
    if changed and context.options.groups:
        release_behind(context, connection, [(leased.group_id, leased.position)])
        settle(context, connection, [leased.group_id or UNGROUPED])
    return changed


def put_off(context: TableContext, connection: SqlConnection, leased: Leased, delay: int) -> bool:
    """Give a message back to be sent after ``delay`` ns; False where the lease was lost.

    It is as if it had not been sent now: neither its attempts nor its back-off move. In a group those behind it go back
    as well, as in `back_off`.
    """
    _lock(context, connection, [leased])
    parameters = {"of": leased.seq, "by": leased.claim_id, "delay": min(delay, FARTHEST)}
    changed = connection.execute(_putting_off(context.rows, context.backend.now_sql()), parameters).rowcount == 1
    if changed and context.options.groups:
        release_behind(context, connection, [(leased.group_id, leased.position)])
        settle(context, connection, [leased.group_id or UNGROUPED])
    return changed


def give_back(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> None:
    """Return messages whose handling has not begun, as if they had never been sent. Those whose lease is lost stay."""
    rows = context.rows
    ours = sorted(leased, key=attrgetter("seq"))
    if not ours:
        return
    _lock(context, connection, ours)
    connection.execute(
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), rows.c.claim_id == sa.bindparam("by"), not_acked(rows))
        .values(time_next=sa.bindparam("due"), epoch=rows.c.epoch - 1, claim_id=None),
        [{"of": one.seq, "by": one.claim_id, "due": one.due} for one in ours],
    )
    context.marks.forget()  # they are due before what came after them
    if context.options.groups:
        settle(context, connection, [one.group_id or UNGROUPED for one in ours])


def still_leased(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> list[bool]:
    """Say of each message whether its claim still has it, and keep it so until the transaction ends."""
    _lock(context, connection, leased)
    return _still(leased, _lock_rows(context, connection, [one.seq for one in leased]))


def _still(leased: Sequence[Leased], locked: Iterable[_Row]) -> list[bool]:
    claims = {row.seq: row.claim_id for row in locked}
    return [claims.get(one.seq) == one.claim_id for one in leased]


def unlocked(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> Sequence[_Row]:
    """Lock those of these rows that are neither acked nor locked elsewhere; return seq and claim_id of each."""
    return connection.execute(_unlocked_rows(context), {"seqs": list(seqs)}).all()


def unacked(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> dict[int, _Row]:
    """Look at those of these rows that are not acked: claim_id, epoch, time_next and expires_at, by seq."""
    return {row.seq: row for row in connection.execute(_unacked(context), {"seqs": list(seqs)})}


def extend(context: TableContext, connection: SqlConnection, leased: Leased, duration: int) -> Held | None:
    """Hold a message for ``duration`` ns from now, never shorter than before; None where the lease was lost.

    In a group those that went out together are held together.
    """
    if not context.options.groups:
        return extend_rows(context, connection, [leased], duration).get((leased.seq, leased.claim_id))
    _lock(context, connection, [leased])
    execute_later(connection, (_locked_rows(context), {"seqs": [leased.seq]}))  # waits for who acks it just now
    return extend_all(context, connection, [leased], duration).get((leased.seq, leased.claim_id))


def extend_rows(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int
) -> dict[tuple[int, int], Held]:
    """Hold messages of one claim of a table without groups, as `extend` does.

    Returns
    -------
    dict
        As `extend_all` gives it.
    """
    of = {"seqs": [one.seq for one in leased], "by": leased[0].claim_id, "duration": min(duration, FARTHEST)}
    if not is_one_update(context, leased):
        execute_later(connection, (_extending(context, one=True), of))
        [found] = execute_all(connection, [_asking_ends(context, leased)], commit=True)
        return _held_by(found)
    held = _held_by(connection.execute(_extending_rows(context), of))
    if len(held) < len(leased):  # what is lost, or is held for longer already
        held |= _held_by(connection.execute(*_asking_ends(context, leased)))
    return held


def _held_by(found: Iterable[_Row]) -> dict[tuple[int, int], Held]:
    return {(row.seq, row.claim_id): _held(row) for row in found}


def _asking_ends(context: TableContext, leased: Sequence[Leased]) -> Asked:
    return _lease_ends(context), {"seqs": [one.seq for one in leased]}


@built_once(maxsize=256)
def _extending_rows(context: TableContext) -> ReturningUpdate[Any, Any, Any, Any]:
    return _extending(context, one=True).returning(*_of_lease(context))


def _of_lease(context: TableContext) -> tuple[sa.Column[Any], sa.Column[Any], sa.Column[Any], sa.Column[Any]]:
    rows = context.rows
    return rows.c.seq, rows.c.claim_id, rows.c.time_next, rows.c.expires_at


def _held(row: _Row) -> Held:
    return Held(row.time_next, row.expires_at == CANCELLED)


def cancelled(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Tell which messages were cancelled that consumers have. Reads only."""
    claims = connection.execute(_cancelled(context), {"seqs": [one.seq for one in leased]}).all()
    found = {(row.seq, row.claim_id) for row in claims}
    return {one for one in leased if (one.seq, one.claim_id) in found}


@built_once(maxsize=256)
def _cancelled(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    return sa.select(rows.c.seq, rows.c.claim_id).where(context.unacked(), is_cancelled(rows))


def _extend_groups(context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int) -> None:
    """Hold all that is out of groups, where one of these messages is out of each: others may be acked, or rescheduled.

    What another transaction has locked keeps its lease as it is: no consumer can claim it before that ends.
    """
    _lock(context, connection, leased)
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
    names = {claims[row.seq, row.claim_id] for row in ours}  # plain SQL may have moved one, into a group not locked
    seqs = {row.seq for row in ours} | {row.seq for found in others for row in found if row.group_id in names}
    if context.options.groups == "exclusive":
        for consumer in sorted({row.consumer or "" for row in ours}):
            consumers.renew(context, connection, consumer, until)
    execute_later(connection, (_extending(context), {"seqs": sorted(seqs), "until": until}))
    settle(context, connection, [name or UNGROUPED for name in names])


def _unlocked(context: TableContext, which: sa.ColumnElement[bool]) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = rows.c.seq, rows.c.claim_id, rows.c.group_id, rows.c.consumer, context.backend.now_sql().label("now")
    return sa.select(*columns).where(which).with_for_update(skip_locked=True)


@built_once(maxsize=256)
def _unlocked_claimed(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Lock those of the messages bound as ``seqs`` that are out."""
    return _unlocked(context, context.unacked() & context.rows.c.claim_id.is_not(None))


@built_once(maxsize=256)
def _unlocked_out(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Lock all that is out of the groups bound as ``groups``."""
    return _unlocked(context, context.sql.any_of(context.rows.c.group_id, "groups") & is_out(context.rows))


@built_once(maxsize=256)
def _extending(context: TableContext, *, one: bool = False) -> sa.Update:
    """Hold messages until a time; ``one``: what a claim has of them, for a duration."""
    rows = context.rows
    which = context.unacked()
    until: sa.ColumnElement[int] = sa.bindparam("until", type_=sa.BigInteger)
    if one:
        which &= rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger)
        until = context.backend.now_sql() + sa.bindparam("duration", type_=sa.BigInteger)
    # So that no index answers it: a planner that is misled would go through all that is due before.
    return sa.update(rows).where(which, sa.func.coalesce(rows.c.time_next, 0) < until).values(time_next=until)


@built_once(maxsize=256)
def _lease_ends(context: TableContext) -> sa.Select[Any, Any, Any, Any]:
    rows = context.rows
    return sa.select(*_of_lease(context)).where(context.unacked(), rows.c.claim_id.is_not(None))


def extend_all(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], duration: int
) -> dict[tuple[int, int], Held]:
    """Hold messages for ``duration`` ns from now, never shorter than before, and with them what went out together.

    Nothing may follow in the transaction, which may be committed.

    Returns
    -------
    dict
        How they are held now, by seq and claim; those that were lost are not in it.
    """
    rows = context.rows
    if context.options.groups:
        _extend_groups(context, connection, leased, min(duration, FARTHEST))
    else:
        until = context.backend.now(connection) + duration
        wanted = {(one.seq, one.claim_id) for one in leased}
        # A transaction in which one of them is being acked is not waited for.
        locked = unlocked(context, connection, [one.seq for one in leased])
        connection.execute(
            sa.update(rows).where(context.unacked(), rows.c.time_next < until).values(time_next=until),
            {"seqs": [row.seq for row in locked if (row.seq, row.claim_id) in wanted]},
        )
    [found] = execute_all(connection, [_asking_ends(context, leased)], commit=True)
    return _held_by(found)


def reschedule(context: TableContext, connection: SqlConnection, ids: Sequence[Any], at: int, epoch: int | None) -> int:
    """Set when messages are sent next (ns), and their epoch; return how many. Those that are out lose their lease.

    Those that were cancelled lose it, too; they are not counted, since they are not sent again.
    """
    rows = context.rows
    known, _ = lock_unacked(context, connection, ids)
    sent: Any = 0
    values: dict[str, Any] = {"time_next": at, "claim_id": None}
    these = context.unacked()
    seqs = {"seqs": [row.seq for row in known]}
    if epoch is not None:
        values["epoch"] = epoch
        sent = connection.execute(sa.select(sa.func.sum(rows.c.epoch)).where(these), seqs).scalar()
    connection.execute(sa.update(rows).where(these).values(values), seqs)
    context.marks.forget()
    if context.options.groups:
        out = [(row.group_id, row.position) for row in known if row.claim_id is not None]
        release_behind(context, connection, out)
        settle(context, connection, [row.group_id or UNGROUPED for row in known])
    if epoch is not None:
        add_totals(connection, context.table_id, sent=int(sent or 0) - epoch * len(known))
    return sum(row.expires_at != CANCELLED for row in known)


@built_once(maxsize=256)
def _unacked(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.claim_id, rows.c.epoch, rows.c.time_next, rows.c.expires_at)
    return sa.select(*columns).where(context.unacked())


def lock_unacked(
    context: TableContext, connection: SqlConnection, ids: Sequence[Any]
) -> tuple[Sequence[_Row], dict[str, sa.Row[Any]]]:
    """Lock messages by id, after their groups; return both, those by name."""
    known = connection.execute(_of_ids(context), {"ids": list(ids)}).all()
    seqs = {"seqs": [row.seq for row in known]}
    if not context.options.groups:
        return connection.execute(_locked_rows(context), seqs).all(), {}
    # In a caller's transaction a message that is new is acked as it is: who routes keeps others from it until the end.
    if any(row.position is None for row in known) and context.backend.is_ours(connection):
        route(context, connection)
        known = connection.execute(_of_ids(context), {"ids": list(ids)}).all()
        seqs = {"seqs": [row.seq for row in known]}
    lock = locking_groups(context, [row.group_id or UNGROUPED for row in known if row.position is not None])
    groups, rows = execute_all(connection, [lock, (_locked_rows(context), seqs)])
    found, locked = rows.all(), by_name(groups)
    routed = {row.group_id or UNGROUPED for row in found if row.position is not None} - locked.keys()
    if routed:  # meanwhile, by another one
        locked |= lock_groups(context, connection, routed)
    return found, locked


def _lock_rows(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> Sequence[_Row]:
    return connection.execute(_locked_rows(context), {"seqs": list(seqs)}).all()


@built_once(maxsize=256)
def _of_ids(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.group_id, *([rows.c.position] if context.options.groups else []))
    return sa.select(*columns).where(context.sql.any_of(rows.c.id, "ids"), not_acked(rows))


@built_once(maxsize=256)
def _unlocked_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    these = sa.select(rows.c.seq, rows.c.claim_id).where(context.unacked())
    return these.order_by(rows.c.seq).with_for_update(skip_locked=True)


@built_once(maxsize=256)
def _locked_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
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


def _lock(context: TableContext, connection: SqlConnection, leased: Iterable[Leased]) -> None:
    # The groups before the rows, as every other operation does.
    if context.options.groups:
        execute_later(connection, locking_groups(context, [one.group_id or UNGROUPED for one in leased]))


def _ack_ids_of_rows(context: TableContext, connection: SqlConnection, ids: Sequence[Any]) -> int:
    """Ack messages by id; return how many were not acked before. A consumer that has one finds its lease lost.

    Nothing may follow in the transaction, which may be committed.
    """
    statement = _acking_ids(context.rows, context.sql, context.backend.now_sql())
    asked = [(statement, {"ids": list(some)}) for some in _pieces(ids, AT_ONCE)]
    return sum(found.rowcount for found in execute_all(connection, asked, commit=True))


def _ack_leased_rows(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> Acked:
    """Ack messages that a consumer holds.

    The claim's number stays on the row as ``acked_by``. So where the answer to an ack was lost, and the delivery tries
    again, its ack differs from every other.
    """
    is_one_claim = len({one.claim_id for one in leased}) <= 1
    changed = 0
    missed: list[Leased] = []
    for some in _pieces(sorted(leased, key=attrgetter("seq")), AT_ONCE if is_one_claim else _CLAIMS_AT_ONCE):
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
    if not missed:
        return Acked(frozenset(), 0)
    lost = frozenset(missed).difference(_rows_acked_by(context, connection, missed))
    return Acked(lost, len(leased) - changed - len(lost))


def _rows_acked_by(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> set[Leased]:
    """Tell which messages are acked by the claims that took them. Reads only."""
    ours: set[Leased] = set()
    for some in _pieces(leased, AT_ONCE):
        claims = _claims_acked(context, connection, some)
        ours.update(one for one in some if claims.get(one.seq) == one.claim_id)
    return ours


def _claims_acked(context: TableContext, connection: SqlConnection, some: Sequence[Leased]) -> dict[int, int | None]:
    """Give the claim by which each message was acked, by seq; those that are not acked are not in it."""
    values = {"seqs": [one.seq for one in some], "ids": [one.id for one in some]}
    return {row.seq: row.acked_by for row in connection.execute(_acked(context), values)}


def _pieces(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _backing_off_each(context: TableContext, delays: Sequence[tuple[Leased, int]]) -> Asked:
    each = [{"of": one.seq, "by": one.claim_id, "delay": min(delay, FARTHEST), "why": None} for one, delay in delays]
    return _backing_off(context.rows, context.backend.now_sql()), each


def _back_off_row(
    context: TableContext, connection: SqlConnection, taken: Taken, delay: int, error: str | None
) -> bool:
    """Give a message back to be sent again after ``delay`` ns; False where the lease was lost."""
    statement = _backing_off(context.rows, context.backend.now_sql())
    parameters = {"of": taken[0], "by": taken[1], "delay": min(delay, FARTHEST), "why": error}
    return connection.execute(statement, parameters).rowcount == 1


@built_once(maxsize=256)
def _of_claim(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger)


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


@built_once(maxsize=256)
def _putting_off(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Update:
    return (
        sa.update(rows)
        .where(
            rows.c.seq == sa.bindparam("of"),
            rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger),
            not_acked(rows),
        )
        .values(
            time_next=now + sa.bindparam("delay", type_=sa.BigInteger),
            epoch=rows.c.epoch - 1,
            claim_id=None,
        )
    )
