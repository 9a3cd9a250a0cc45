"""Drops messages that expire before a consumer takes them, or moves them to the dead-letter table.

A claim removes the expired messages that it finds. A purge also removes them in a table without consumers. A dropped
message stays in the table like an acked message, marked as expired, until it is purged. So a second put of its id still
does nothing, a consumer needs no more privileges than for an ack, and ``explain`` can still report it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import UNGROUPED, lock_free_groups, settle
from waterclock.tables.groups.routing import route
from waterclock.tables.messages.finishing.dead_letters import bury, drop, may_bury, uncount
from waterclock.tables.messages.rows.locking import lock_free
from waterclock.tables.messages.rows.refused_rows import pass_by_refused
from waterclock.tables.model.claims.claim import Leased
from waterclock.tables.model.claims.epochs import uncounted_sql
from waterclock.tables.model.row_conditions import is_expired, not_acked
from waterclock.time import MAX_NS, MIN_NS

_log = logging.getLogger(__name__)

REASON = "expired"  # the reason in the dead-letter table
AT_ONCE = 500  # maximum messages that one statement examines, and that one transaction of a purge removes
_PIECES = 10  # how often a consumer purges between claims, so that due messages wait little for it
_COMMITTED_WITHIN = 1_000_000_000
"""How long a transaction may take that puts messages which expire at once, ns: those of a longer one are found by the
next search from the first message on."""
_LONG = 86_400_000_000_000
"""Each search looks for messages that expired longer ago, ns: plain SQL may set any time, and cancelled ones have the
first. Messages that were acked so long ago have entries only while a snapshot is as old."""


def expire(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> int:
    """Remove waiting messages that are still expired once they are locked; return how many.

    Messages locked elsewhere stay. The caller has locked the groups.
    """
    # Plain SQL, which locks no group, may have extended one since the caller looked.
    found = connection.execute(_to_expire(context), {"seqs": list(seqs)}).all()
    chosen = [row.seq for row in found]
    if not chosen:
        return 0
    if context.options.on_expired == "dead_letter":
        bury(context, connection, chosen, REASON)
    else:
        drop(context, connection, chosen)
        if context.options.groups:
            settle(context, connection, {row.group_id or UNGROUPED for row in found})
    return len(chosen)


def expire_claimed(context: TableContext, connection: SqlConnection, seqs: Sequence[int], claim_id: int) -> None:
    """Remove expired messages that a claim has just found, in a table without groups.

    If the process dies before this, the next claim after the lease finds them again.
    """
    ours = uncount(context, connection, seqs, claim_id)
    if ours:
        expire(context, connection, ours)


def expire_unstarted(context: TableContext, connection: SqlConnection, leased: Sequence[Leased]) -> list[Leased]:
    """Remove messages that expired while they waited unstarted with a consumer.

    Returns messages that another transaction has locked, perhaps one that the consumer's own caller ends later.
    """
    ours, kept = lock_free(context, connection, leased)
    if ours:
        rows, seqs = context.rows, [one.seq for one in ours]
        connection.execute(
            sa.update(rows).where(context.unacked()).values(epoch=uncounted_sql(rows.c.epoch)), {"seqs": seqs}
        )
        expire(context, connection, seqs)
    return kept


def expire_first(context: TableContext, connection: SqlConnection, group_id: str, now: int, most: int) -> int:
    """Remove messages expired at ``now`` from the start of a locked group; return how many.

    It examines at least ``most`` messages.
    """
    at = {"group": group_id, "now": now, "count": max(most, AT_ONCE)}
    seqs = list(connection.scalars(_first_expired(context), at))
    return expire(context, connection, seqs) if seqs else 0


def expire_some(context: TableContext, pieces: int | None = _PIECES) -> int:
    """Remove expired, unleased messages without a claim; return how many.

    Messages locked elsewhere are left to the next call, and so are all if their dead-letter table is missing. Messages
    that the database refuses to remove stay, and are reported as in `purge_some`.

    ``pieces`` is how many times `AT_ONCE` messages to examine, from the `ExpiredPlace` on; None: all messages.
    """
    now = context.backend.now_about() - _COMMITTED_WITHIN
    start = MIN_NS if pieces is None else context.expired_place.begin()
    earlier, refused = 0, None
    if start > MIN_NS:
        earlier, refused, _ = _expire_between(context, MIN_NS, now - _LONG, pieces)
    removed, refusal, upto = _expire_between(context, start, MAX_NS, pieces)
    if upto is not None:
        context.expired_place.end(start, min(upto, now))
    refused = refused or refusal
    if refused is not None and context.purge_place.tells("expired"):
        _log.warning("cannot remove some expired messages of table %r: %s", context.name, refused)
    return earlier + removed


def expire_more(context: TableContext) -> None:
    """Remove many expired messages at once: claims of a few messages would take minutes to pass ten thousand."""
    try:
        expire_some(context, pieces=1)
    except WaterclockError as error:  # claims remove them, too
        _log.warning("cannot remove expired messages from table %s: %s", context.name, error)


def _expire_between(
    context: TableContext, first: int, last: int, pieces: int | None
) -> tuple[int, WaterclockError | None, int | None]:
    """Remove messages that expired from ``first`` to ``last``.

    Returns how many, why the database refuses to remove others, and up to when none is left; None: unknown.
    """
    removed, refused, upto = 0, None, None
    has_all = True
    after = {"after": first, "seq": 0}
    for _ in count() if pieces is None else range(pieces):
        # On SQLite, do not take the write lock if nothing has expired.
        with context.backend.snapshot(indexed=True) as connection:
            found = connection.execute(_expired(context), {**after, "last": last, "count": AT_ONCE}).all()
        if found and context.options.on_expired == "dead_letter" and not may_bury(context):
            break
        if context.options.groups and any(row.routed != 1 for row in found):
            context.backend.transact(lambda own: route(context, own), indexed=True)
        done, refusal, *_ = pass_by_refused(
            [row.seq for row in found],
            lambda part: context.backend.transact(lambda own: _expire_these(context, own, part), indexed=True),
        )
        removed, refused, has_all = removed + done, refusal or refused, has_all and done == len(found)
        is_last = len(found) < AT_ONCE
        if has_all:
            upto = last if is_last else found[-1].expires_at
        if is_last:
            break
        after = {"after": found[-1].expires_at, "seq": found[-1].seq}
    return removed, refused, upto


def _expire_these(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> int:
    """Remove those of these messages that are still expired once they are locked."""
    rows = context.rows
    names: set[str] = set()
    if context.options.groups:
        placed = sa.select(rows.c.group_id).distinct().where(context.unacked(), rows.c.position.is_not(None))
        names.update(lock_free_groups(context, connection, connection.scalars(placed, {"seqs": list(seqs)})))
    locked = connection.execute(_locking(context), {"seqs": list(seqs)}).all()
    if context.options.groups:
        locked = [row for row in locked if row.group_id in names or (row.group_id is None and row.routed == 1)]
    return expire(context, connection, [row.seq for row in locked]) if locked else 0


@built_once(maxsize=256)
def _to_expire(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    over = rows.c.expires_at <= context.backend.now_sql()
    chosen = sa.select(rows.c.seq, rows.c.group_id).where(context.unacked(), over)
    return chosen.order_by(rows.c.seq).with_for_update(skip_locked=True)


@built_once(maxsize=256)
def _first_expired(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    first = (
        sa.select(rows)
        .where(rows.c.group_id == sa.bindparam("group"), rows.c.time_acked.is_(None), rows.c.position.is_not(None))
        .order_by(rows.c.position)
        .limit(sa.bindparam("count"))
        .subquery("first")
    )
    return sa.select(first.c.seq).where(is_expired(first, sa.bindparam("now", type_=sa.BigInteger)))


@built_once(maxsize=256)
def _expired(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows, now = context.rows, context.backend.now_sql()
    after, seq = sa.bindparam("after", type_=sa.BigInteger), sa.bindparam("seq", type_=sa.BigInteger)
    columns = (rows.c.seq, rows.c.expires_at, *([rows.c.routed] if context.options.groups else []))
    return (
        sa.select(*columns)
        .where(
            rows.c.time_acked.is_(None),
            rows.c.expires_at <= now,
            rows.c.expires_at <= sa.bindparam("last", type_=sa.BigInteger),
            rows.c.expires_at >= after,
            sa.or_(rows.c.expires_at > after, rows.c.seq > seq),
            is_expired(rows, now),
        )
        .order_by(rows.c.time_acked, rows.c.expires_at, rows.c.seq)  # in index order, otherwise PostgreSQL sorts
        .limit(sa.bindparam("count"))
    )


@built_once(maxsize=256)
def _locking(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.group_id, *([rows.c.routed] if context.options.groups else []))
    expired = is_expired(rows, context.backend.now_sql())
    return (
        sa.select(*columns)
        .where(context.sql.any_of(rows.c.seq, "seqs"), not_acked(rows), expired)
        .order_by(rows.c.seq)
        .with_for_update(skip_locked=True)
    )
