"""Acks many messages at once, by delivery or by id, in our transaction or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.undecided import decide
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.acking import is_of_one_claim
from waterclock.tables.messages.putting.putting import check_id
from waterclock.tables.messages.rows import locking
from waterclock.tables.messages.rows.process_heartbeat import note_acked
from waterclock.tables.model.claims.leased_message import Acked, Leased


def ack_together(context: TableContext, callers: CallerConnections, given: Sequence[Any], connection: Any) -> int:
    deliveries = [one for one in given if isinstance(one, Delivery)]
    ids = [check_id(context, one) for one in given if not isinstance(one, Delivery)]
    if connection is None:
        count, lost = _ack(context, deliveries, ids)
    else:
        count, lost = _ack_for_caller(context, callers, deliveries, ids, connection)
    lost |= {one.leased for one in deliveries if one.given_back}
    if lost:
        names = ", ".join(dict.fromkeys(repr(one.id) for one in deliveries if one.leased in lost))
        raise LeaseLostError(
            f"cannot ack {names} of table {context.name!r}: the leases ended, or the messages were acked, rescheduled"
            f" or given back. The other {count} are acked"
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
