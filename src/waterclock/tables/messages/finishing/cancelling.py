"""Cancels messages: removes a waiting message at once, and notifies the consumer of a leased message.

A cancelled message gets the earliest possible expiry time. So the rules for expired messages prevent the message from
being sent and from blocking other messages. A leased message stays with its consumer until it is acked or returned, or
its lease ends. So no message of its group overtakes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.group_state import UNGROUPED, settle
from waterclock.tables.messages.rows.locking import lock_ids, lock_in_order
from waterclock.tables.model.row_conditions import CANCELLED, EXPIRED, is_cancelled, not_acked, reason_to_keep


def cancel(context: TableContext, connection: SqlConnection, ids: Sequence[Any], reason: str | None) -> int:
    """Cancel messages by id; return how many were not acked, expired or cancelled before."""
    if not context.options.groups:
        return _by_ids(context, connection, _cancelling(context), ids, reason)
    known, _ = lock_ids(context, connection, ids)
    if not known:
        return 0
    chosen = {"seqs": [row.seq for row in known]}
    changed = connection.execute(_marking(context, by="seqs"), {**chosen, "why": reason}).rowcount
    connection.execute(_dropping(context), chosen)
    settle(context, connection, {row.group_id or UNGROUPED for row in known if row.position is not None})
    return changed


def cancel_for_caller(context: TableContext, connection: SqlConnection, ids: Sequence[Any], reason: str | None) -> int:
    """Cancel messages in a caller's transaction, as `cancel` does.

    It locks no group until that ends: a message in a group is only marked, and a claim or a purge removes it like an
    expired one.
    """
    if not context.options.groups:
        return cancel(context, connection, ids, reason)
    return _by_ids(context, connection, _marking(context, by="ids"), ids, reason)


def _by_ids(
    context: TableContext, connection: SqlConnection, statement: sa.Update, ids: Sequence[Any], reason: str | None
) -> int:
    lock_in_order(context, connection, (), ids)
    return sum(connection.execute(statement, {"ids": list(some), "why": reason}).rowcount for some in pieces(ids))


@built_once(maxsize=256)
def _cancelling(context: TableContext) -> sa.Update:
    rows, now = context.rows, context.backend.now_sql()
    out = _is_out(context)
    # In this order, because MariaDB assigns from left to right, and later assignments read claim_id.
    return (
        sa.update(rows)
        .where(context.sql.any_of(rows.c.id, "ids"), not_acked(rows), *_may_be_cancelled(rows))
        .ordered_values(
            *_marks(rows),
            (rows.c.time_acked, sa.case((out, sa.null()), else_=now)),
            (rows.c.acked_by, sa.case((out, rows.c.acked_by), else_=EXPIRED)),
            (rows.c.claim_id, sa.case((out, rows.c.claim_id), else_=sa.null())),
            (rows.c.time_next, sa.case((out, rows.c.time_next), else_=sa.null())),
        )
    )


@built_once(maxsize=256)
def _marking(context: TableContext, *, by: Literal["seqs", "ids"]) -> sa.Update:
    # Separate, because a statement that sets time_next would have groups of leased messages checked again.
    rows = context.rows
    chosen = context.sql.any_of(rows.c.seq if by == "seqs" else rows.c.id, by), not_acked(rows)
    return sa.update(rows).where(*chosen, *_may_be_cancelled(rows)).ordered_values(*_marks(rows))


@built_once(maxsize=256)
def _dropping(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(
            context.unacked(),
            is_cancelled(rows),
            sa.not_(_is_out(context)),
            rows.c.ack_held_at.is_(None),
            # A message that closes its group does so from its place, which the next claim or purge determines before it
            # removes the message.
            (rows.c.closes_group == 0) | rows.c.position.is_not(None),
        )
        .values(time_acked=context.backend.now_sql(), time_next=None, acked_by=EXPIRED, claim_id=None)
    )


def _is_out(context: TableContext) -> sa.ColumnElement[bool]:
    rows = context.rows
    return rows.c.claim_id.is_not(None) & (rows.c.time_next > context.backend.now_sql())


def _may_be_cancelled(rows: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
    fresh = sa.func.coalesce(rows.c.expires_at, 0) != sa.literal(CANCELLED, sa.BigInteger)
    return fresh, rows.c.ack_held_at.is_(None)


def _marks(rows: sa.Table) -> tuple[tuple[sa.ColumnElement[Any], Any], ...]:
    why = sa.func.coalesce(reason_to_keep(rows, sa.bindparam("why", type_=sa.Text)), rows.c.last_error)
    return (rows.c.expires_at, sa.literal(CANCELLED, sa.BigInteger)), (rows.c.last_error, why)
