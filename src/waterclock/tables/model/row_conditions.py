"""Conditions on the rows of a message table, and the values that an ack sets."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.tables.model.schema import LONGEST_REASON, PARTITIONED
from waterclock.time import MAX_NS, MIN_NS


def not_acked(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message is unacked, for messages selected by key.

    Written so that no index answers it: a planner without statistics believes that few messages are unacked, and would
    scan all of those. If unacked messages have their own partition, the database must recognise it by this condition,
    and no index uses it there.
    """
    table = rows.element if isinstance(rows, sa.Alias) else rows
    if isinstance(table, sa.Table) and table.info.get(PARTITIONED):
        return rows.c.time_acked.is_(None)
    return sa.func.coalesce(rows.c.time_acked, -1) == -1


def reason_to_keep(rows: sa.Table, reason: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Truncate a reason to the length of ``last_error``, which may be a VARCHAR in an adopted table."""
    longest = rows.info.get(LONGEST_REASON)
    return reason if longest is None else sa.func.substr(reason, 1, longest)


_Assignment = tuple[sa.ColumnElement[Any], Any]


def ack_marks(rows: sa.Table, *, by_claim: bool) -> tuple[_Assignment, ...]:
    """Return the columns that record whose ack it is, and that no claim has the message any more.

    In this order, because MariaDB assigns from left to right.

    ``by_claim`` says whether a delivery of the claim acks it; otherwise it is acked by id.
    """
    by: sa.ColumnElement[Any] = rows.c.claim_id if by_claim else sa.null()
    return (rows.c.acked_by, by), (rows.c.claim_id, None)


def ack_values(rows: sa.Table, now: sa.ColumnElement[int], *, by_claim: bool) -> tuple[_Assignment, ...]:
    """Return the columns that an ack sets; see `ack_marks`."""
    return (rows.c.time_acked, now), (rows.c.time_next, None), *ack_marks(rows, by_claim=by_claim)


def is_waiting(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message is unacked, in a form for which the claim's index is used.

    It misses none: triggers give every unacked message a due time.
    """
    return rows.c.time_acked.is_(None) & rows.c.time_next.is_not(None)


def is_late(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message was due in the past when it was put or changed: in tables without groups."""
    return rows.c.routed == sa.literal_column("2")


# In SQL, as a check of the table: a copy of the table that lacks the triggers refuses an unacked message without a due
# time, which no claim would find.
HAS_DUE_TIME = "time_acked IS NOT NULL OR time_next IS NOT NULL"
EXPIRED = 0  # the value of ``acked_by`` of a message that expired and was dropped; no claim has this id
CANCELLED = MIN_NS  # the value of ``expires_at`` of a cancelled message: it expired before any time


def is_cancelled(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message was cancelled; it may still be leased."""
    return rows.c.expires_at == sa.literal(CANCELLED, sa.BigInteger)


def is_expired(rows: sa.FromClause, now: Any) -> sa.ColumnElement[bool]:
    """Return the condition that an unacked, unleased message has expired at ``now``, ns."""
    free = rows.c.claim_id.is_(None) | (rows.c.time_next <= now)
    return (sa.func.coalesce(rows.c.expires_at, MAX_NS) <= now) & free & rows.c.ack_held_at.is_(None)


def has_id(rows: sa.Table, message_id: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that a table has a message with an id, looked up for each.

    Not as a plain condition, which becomes a join: a planner that believes the table empty, as it was when analyzed,
    would scan it for each id.
    """
    return sa.func.coalesce(sa.exists().where(rows.c.id == message_id), sa.false())
