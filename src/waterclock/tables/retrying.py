"""Giving back and sending again, many messages in bounded transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock.tables import acking
from waterclock.tables.context import TableContext
from waterclock.tables.delivery import Delivery

_CHUNK = 500  # messages in one transaction, so that nobody waits long for them
_T = TypeVar("_T")


def nack_all(context: TableContext, deliveries: Iterable[Delivery], delay: int | None) -> int:
    """Give deliveries back; return how many were still held. The others are noted as lost."""
    ours = sorted((one for one in deliveries if not one.over), key=lambda one: one.held.seq)
    count = 0
    for chunk in _chunks(ours):

        def work(own: sa.Connection, chunk: Sequence[Delivery] = chunk) -> list[bool]:
            return [one.nack_in(own, delay, None) for one in chunk]

        for one, kept in zip(chunk, context.backend.transact(work), strict=True):
            one.lost = not kept
            one.end()
            count += kept
    return count


def retry_ids(context: TableContext, ids: Sequence[Any]) -> int:
    """Send messages now, as if for the first time; return how many were not acked."""
    return sum(
        context.backend.transact(lambda own, chunk=chunk: _send_now(context, own, chunk)) for chunk in _chunks(ids)
    )


def retry_delayed(context: TableContext) -> int:
    """Send every message now that was sent before, is with nobody, and is due later; return how many."""
    rows = context.rows
    total = last = 0
    while True:
        with context.backend.snapshot() as connection:
            later = connection.execute(
                sa.select(rows.c.seq, rows.c.id)
                .where(
                    rows.c.time_acked.is_(None),
                    rows.c.lease.is_(None),
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


def _chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
