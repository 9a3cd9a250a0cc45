"""Acks, returns, retries and extends many messages at once, in transactions of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import explaining
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.undecided import decide, find_out
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.acking import back_off_at_once, is_of_one_claim, is_one_update, run
from waterclock.tables.messages.finishing.dead_letters import bury, dies_when_given_back, exhausted_reason
from waterclock.tables.messages.finishing.extending import extend_all, extend_rows
from waterclock.tables.messages.putting.putting import check_id
from waterclock.tables.messages.rows import locking
from waterclock.tables.messages.rows.process_heartbeat import note_acked, process_heartbeat
from waterclock.tables.model.claims.claim import Acked, Held, Leased


def ack_together(context: TableContext, callers: CallerConnections, given: Sequence[Any], connection: Any) -> int:
    deliveries = [one for one in given if isinstance(one, Delivery)]
    ids = [check_id(context, one) for one in given if not isinstance(one, Delivery)]
    if connection is None:
        count, lost = _ack(context, deliveries, ids)
    else:
        count, lost = _ack_for_caller(context, callers, deliveries, ids, connection)
    lost |= {one.leased for one in deliveries if one.given_back}
    if lost:
        names = ", ".join(dict.fromkeys(f"message {one.id!r}" for one in deliveries if one.leased in lost))
        raise LeaseLostError(
            f"cannot ack {names} of table {context.name!r}: the leases ended, or the messages were acked, rescheduled"
            f" or given back. Messages acked: {count}"
        )
    return count


def _ack(context: TableContext, deliveries: Sequence[Delivery], ids: Sequence[Any]) -> tuple[int, frozenset[Leased]]:
    decide(context, deliveries, "ack")
    leased = _leased(deliveries)

    def write_acks(own: SqlConnection) -> tuple[Acked, int]:
        return _write(context, own, leased, ids)

    if (leased and ids) or not is_of_one_claim(leased):
        acked, by_id = context.backend.transact(write_acks)
    else:
        acked, by_id = acking.run(context, write_acks, several=len(ids) > 1)
    for delivery in deliveries:
        if delivery.leased in acked.lost:
            delivery.lose()
        elif not delivery.over:
            delivery.end("ack")
    if ids:
        note_acked(context, ids)
    # An attempt whose answer was lost may already have acked these messages.
    return by_id + len(leased) - len(acked.lost), acked.lost


def _ack_for_caller(
    context: TableContext,
    callers: CallerConnections,
    deliveries: Sequence[Delivery],
    ids: Sequence[Any],
    connection: Any,
) -> tuple[int, frozenset[Leased]]:
    leased = _leased(deliveries)
    with callers.use(connection) as theirs:
        for delivery in deliveries:
            if not delivery.over:
                delivery.leave_to_caller()
        acked, by_id = _write(context, theirs, leased, ids)
        acking.check_sight(context, theirs, acked.lost)
    # The deliveries are not marked as acked: the caller may roll back.
    return by_id + len(leased) - len(acked.lost) - acked.again, acked.lost


def _leased(deliveries: Sequence[Delivery]) -> list[Leased]:
    return list(dict.fromkeys(one.leased for one in deliveries if not one.over))


def _write(
    context: TableContext, connection: SqlConnection, leased: Sequence[Leased], ids: Sequence[Any]
) -> tuple[Acked, int]:
    if leased and ids:
        locking.lock_together(context, connection, leased, ids)
    elif ids and not context.options.groups:  # grouped messages are found by id and locked together with their groups
        locking.lock_in_order(context, connection, (), ids)
    elif not (is_of_one_claim(leased) and context.backend.is_ours(connection)):  # an index scan in order
        locking.lock_together(context, connection, leased, ())
    acked = acking.ack_leased(context, connection, leased)
    return acked, acking.ack_ids(context, connection, ids) if ids else 0


_CHUNK = 500  # messages in one transaction, so that no consumer waits long for them


def nack_all(context: TableContext, deliveries: Iterable[Delivery], delay: int | None) -> int:
    """Return deliveries to the table; return how many were still leased. Mark the others as lost."""
    deliveries = list(deliveries)
    decide(context, deliveries, "nack")
    ours = sorted({one for one in deliveries if not one.over}, key=lambda one: one.leased.seq)
    count = 0
    for chunk in pieces(ours, _CHUNK):
        # Messages that die are put into another table.
        dies = any(dies_when_given_back(context, one.leased) for one in chunk)
        if not dies and is_one_update(context, [one.leased for one in chunk]):
            delays = [(one.leased, one.retry_delay(delay)) for one in chunk]
            given_back = context.backend.alone(lambda own, delays=delays: back_off_at_once(context, own, delays))
        else:
            given_back = context.backend.transact(
                lambda own, chunk=chunk: _nack_chunk(context, own, chunk, delay), indexed=not dies
            )
        for one, kept in zip(chunk, given_back, strict=True):
            if kept:
                one.end("nack")
            else:
                one.lose()
            count += kept
    return count


def give_back(context: TableContext, deliveries: Sequence[Delivery]) -> None:
    """Return deliveries to the table, due at once and without counting an attempt. Finished ones stay finished."""
    find_out(context, deliveries)
    ours = [one for one in deliveries if not (one.over or one.undecided)]
    if not ours:
        return
    context.backend.transact(lambda own: acking.give_back(context, own, [one.leased for one in ours]))
    process_heartbeat(context).note_sent(-len(ours))
    for one in ours:
        one.end("close")


def _nack_chunk(
    context: TableContext, connection: SqlConnection, chunk: Sequence[Delivery], delay: int | None
) -> list[bool]:
    dying = {one for one in chunk if dies_when_given_back(context, one.leased)}
    if not dying:
        return acking.back_off_all(context, connection, [(one.leased, one.retry_delay(delay)) for one in chunk])
    if context.options.groups:  # a returned message takes along those behind it
        locking.lock_together(context, connection, [one.leased for one in chunk], ())
        kept = locking.still_leased(context, connection, [one.leased for one in chunk])
        for one, still in zip(chunk, kept, strict=True):
            if still:
                one.nack_in(connection, delay, None)
        return kept
    kept = locking.still_leased(context, connection, [one.leased for one in chunk])
    ours = [one for one, still in zip(chunk, kept, strict=True) if still]
    living = [(one.leased, one.retry_delay(delay)) for one in ours if one not in dying]
    if len(living) < len(ours):
        bury(context, connection, [one.leased.seq for one in ours if one in dying], exhausted_reason(context))
    if living:
        acking.back_off_all(context, connection, living)
    return kept


def retry_ids(context: TableContext, ids: Sequence[Any]) -> int:
    """Send messages now, as if for the first time; return how many were not acked."""
    count = 0
    for some in pieces(ids, _CHUNK):
        count += context.backend.transact(
            lambda own, some=some: acking.reschedule(context, own, some, context.backend.now(own), 0)
        )
    return count


def retry_delayed(context: TableContext) -> int:
    """Reschedule to now each message that was sent before, is unleased, and is due later; return the count."""
    rows = context.rows
    total = last = 0
    while True:
        with context.backend.snapshot() as connection:
            later = connection.execute(
                sa.select(rows.c.seq, rows.c.id)
                .where(
                    rows.c.time_acked.is_(None),
                    rows.c.claim_id.is_(None),
                    rows.c.epoch > 0,
                    rows.c.time_next > context.backend.now_sql(),
                    rows.c.seq > last,
                )
                .order_by(rows.c.seq)
                .limit(_CHUNK)
            ).all()
        if not later:
            return total
        last = later[-1].seq
        total += retry_ids(context, [row.id for row in later])


def extend_together(context: TableContext, deliveries: Sequence[Delivery], duration: int) -> int:
    """Extend leases to ``duration`` ns from now; return how many are still leased. Mark the others as lost."""
    decide(context, deliveries, "extend")
    ours = list(dict.fromkeys(one for one in deliveries if not one.over))
    extend = extend_all if context.options.groups else extend_rows
    held: dict[tuple[int, int], Held] = {}
    for some in _of_one_claim(ours):
        with explaining(context):
            held |= run(context, lambda own, some=some: extend(context, own, some, duration))
    for one in ours:
        one.extended(held.get((one.leased.seq, one.leased.claim_id)))
    return sum(not one.lost for one in ours)


def _of_one_claim(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Leased]]:
    claims: dict[int, list[Leased]] = {}
    for one in deliveries:
        claims.setdefault(one.leased.claim_id, []).append(one.leased)
    for leased in claims.values():
        yield from pieces(leased)
