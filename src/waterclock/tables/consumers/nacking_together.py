"""Returns or retries many messages, in transactions of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.undecided import decide, find_out
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.acking import back_off_at_once, is_one_update
from waterclock.tables.messages.finishing.dead_letters import bury, dies_when_given_back, exhausted_reason
from waterclock.tables.messages.rows import locking
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat

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
    chunks = pieces(ids, _CHUNK)
    return sum(context.backend.transact(lambda own, some=some: _send_now(context, own, some)) for some in chunks)


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


def _send_now(context: TableContext, connection: sa.Connection, ids: Sequence[Any]) -> int:
    return acking.reschedule(context, connection, ids, context.backend.now(connection), 0)
