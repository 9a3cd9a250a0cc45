"""Stores dead letters in a message table of their own, and moves them back to their table.

A dead letter keeps its id and all values of its row. Each message table has its own dead-letter table, because messages
of two tables may have the same id. A new dead letter replaces an older one with the same id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import ConstraintError, InvalidArgumentError, SchemaError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.group_state import UNGROUPED, settle
from waterclock.tables.messages.rows.locking import lock_ids, still_leased
from waterclock.tables.model.attempts import Failure
from waterclock.tables.model.claims.claim import Leased
from waterclock.tables.model.claims.epochs import times_sent, times_sent_sql, uncounted_sql
from waterclock.tables.model.row_conditions import CANCELLED, EXPIRED, has_id, not_acked, reason_to_keep
from waterclock.tables.model.schema import DIED, ORDER, REASON, SOURCE, settable, user_column_names

_RETURNED = (
    "id", "message", "headers", "priority", "group_id", "time_created", "last_error", "failed_attempts",
    "saved_progress", "closes_group",
)  # fmt: skip
_KEPT = (*_RETURNED, "epoch", "time_scheduled")
_log = logging.getLogger(__name__)

_CHUNK = 500  # messages moved in one transaction


def is_exhausted(context: TableContext, epoch: int) -> bool:
    """Return whether a message that was sent ``epoch`` times has used up its attempts.

    In a table with groups it depends on its group, too.
    """
    most = context.options.max_attempts
    return most is not None and context.options.groups is None and epoch >= most


def dies_when_given_back(context: TableContext, leased: Leased) -> bool:
    """Return whether a message has used up its attempts and does not block a group, so that it need not wait."""
    most = context.options.max_attempts
    if most is None or leased.epoch < most:
        return False
    in_group = context.options.groups is not None and leased.position is not None
    return not in_group or context.options.on_exhausted == "dead_letter"


def exhausted_reason(context: TableContext) -> str:
    """Return the reason why a message died that was not acked in all its attempts."""
    most = context.options.max_attempts
    return f"sent {'once' if most == 1 else f'{most} times'} without an ack"


def bury(context: TableContext, connection: SqlConnection, seqs: Sequence[int], why: str) -> None:
    """Move messages to the dead-letter table, in the connection's transaction; the caller has locked their rows.

    Cancelled ones are dropped instead.

    Raises `InvalidArgumentError` if the message table has no dead-letter table. Raises `SchemaError` if that is
    missing, or lacks a column.
    """
    dead = dead_letter_table(context)
    rows, dead_rows = context.rows, dead.rows
    now = context.backend.now(connection)
    kept = (*_KEPT, *_shared_columns(context, dead))
    these = context.unacked()
    found = connection.execute(
        sa.select(rows.c.seq, rows.c.id, rows.c.group_id, rows.c.epoch, rows.c.expires_at).where(these),
        {"seqs": list(seqs)},
    ).all()
    facts = [row for row in found if row.expires_at != CANCELLED]
    if len(facts) < len(found):
        drop(context, connection, [row.seq for row in found if row.expires_at == CANCELLED])
        if context.options.groups and not facts:
            settle(context, connection, [row.group_id or UNGROUPED for row in found])
        if not facts:
            return
    chosen = {"seqs": [row.seq for row in facts]}
    same, ids = context.sql.any_of(dead_rows.c.id, "ids"), {"ids": [row.id for row in facts]}
    replaced = connection.execute(sa.select(times_sent_sql(dead_rows.c.epoch)).where(same), ids).scalar()
    connection.execute(sa.delete(dead_rows).where(same), ids)
    values = [sa.literal(now, sa.BigInteger), sa.literal(why), sa.literal(context.name), sa.literal(now, sa.BigInteger)]
    moved = sa.select(*(rows.c[name] for name in kept), *values, rows.c.seq).where(these).order_by(rows.c.seq)
    names = [*kept, "time_next", REASON, SOURCE, DIED, ORDER]
    connection.execute(sa.insert(dead_rows).from_select(names, moved.params(chosen), include_defaults=False))
    connection.execute(sa.delete(rows).where(these), chosen)
    if context.options.groups:
        settle(context, connection, [row.group_id or UNGROUPED for row in found])
    sent = times_sent(row.epoch for row in facts)
    add_totals(connection, context.table_id, sent=sent)
    add_totals(connection, dead.table_id, sent=int(replaced or 0) - sent)


def drop(context: TableContext, connection: SqlConnection, seqs: Sequence[int]) -> None:
    """Keep messages like acked ones, marked as expired. The caller has locked them, and settles their groups."""
    connection.execute(_dropping(context), {"seqs": list(seqs)})


@built_once(maxsize=256)
def _dropping(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(context.unacked())
        .values(time_acked=context.backend.now_sql(), time_next=None, acked_by=EXPIRED, claim_id=None)
    )


def bury_leased(
    context: TableContext, connection: SqlConnection, leased: Leased, why: str, failure: Failure | None = None
) -> bool:
    """Move a leased message to the dead-letter table; return False if the lease was lost.

    ``failure`` is the failed attempt that made it a dead letter, if there was one.
    """
    dead_letter_table(context)
    if not all(still_leased(context, connection, [leased])):
        return False
    if failure is not None:
        _note_failure(context.rows, connection, leased, failure)
    bury(context, connection, [leased.seq], why)
    return True


def _note_failure(rows: sa.Table, connection: SqlConnection, leased: Leased, failure: Failure) -> None:
    why, tried = sa.literal(failure.error, sa.Text), sa.literal(failure.attempts, sa.Text)
    noting = sa.update(rows).values(
        last_error=sa.func.coalesce(reason_to_keep(rows, why), rows.c.last_error),
        failed_attempts=sa.func.coalesce(tried, rows.c.failed_attempts),
    )
    connection.execute(noting.where(rows.c.seq == leased.seq, not_acked(rows)))


def bury_claimed(context: TableContext, connection: SqlConnection, seqs: Sequence[int], claim_id: int) -> None:
    """Move exhausted messages that a claim has just found to the dead-letter table.

    If the process dies before this, the next claim after the lease finds them again.
    """
    ours = uncount(context, connection, seqs, claim_id)
    if ours:
        bury(context, connection, ours, exhausted_reason(context))


def bury_ids(context: TableContext, ids: Sequence[Any], why: str) -> int:
    """Move messages to the dead-letter table by id; return how many. Those that consumers have stay with them."""
    dead_letter_table(context)
    chunks = pieces(ids, _CHUNK)
    return sum(context.backend.transact(lambda own, some=some: _bury_some(context, own, some, why)) for some in chunks)


def _bury_some(context: TableContext, connection: SqlConnection, ids: Sequence[Any], why: str) -> int:
    known, _ = lock_ids(context, connection, ids)
    rows = context.rows
    is_out = rows.c.claim_id.is_not(None) & (rows.c.time_next > context.backend.now_sql())
    is_fresh = sa.func.coalesce(rows.c.expires_at, 0) != sa.literal(CANCELLED, sa.BigInteger)
    waiting = sa.select(rows.c.seq).where(context.unacked(), sa.not_(is_out), rows.c.ack_held_at.is_(None), is_fresh)
    seqs = list(connection.scalars(waiting, {"seqs": [row.seq for row in known]}))
    if seqs:
        bury(context, connection, seqs, why)
    return len(seqs)


def uncount(context: TableContext, connection: SqlConnection, seqs: Sequence[int], claim_id: int) -> list[int]:
    """Lock messages that a claim still has, and counted as sent although they were not handed out; return them.

    Messages locked by another transaction stay with the claim until their lease ends.
    """
    rows = context.rows
    these = context.unacked()
    taken = sa.select(rows.c.seq).where(these, rows.c.claim_id == claim_id)
    ours = list(connection.scalars(taken.order_by(rows.c.seq).with_for_update(skip_locked=True), {"seqs": list(seqs)}))
    if ours:
        connection.execute(sa.update(rows).where(these).values(epoch=uncounted_sql(rows.c.epoch)), {"seqs": ours})
    return ours


def redrive(context: TableContext, ids: Iterable[Any] | None, limit: int | None) -> int:
    """Redrive dead letters to their table in their former order; return how many.

    They are due at once and count as never sent. Acked dead letters stay, and so do those whose id was put again
    meanwhile.
    """
    dead = dead_letter_table(context)
    wanted = None if ids is None else list(ids)
    total = 0
    while limit is None or total < limit:
        most = _CHUNK if limit is None else min(_CHUNK, limit - total)
        try:
            moved = context.backend.transact(lambda own, most=most: _redrive_chunk(context, dead, own, wanted, most))
        except ConstraintError:
            continue  # a writer has just put one of the ids again: its message stays
        total += moved
        if moved < most:
            break
    return total


def _redrive_chunk(
    context: TableContext, dead: TableContext, connection: sa.Connection, ids: list[Any] | None, most: int
) -> int:
    rows, dead_rows = context.rows, dead.rows
    returning = (
        sa.select(dead_rows.c.seq, dead_rows.c.epoch)
        .where(dead_rows.c.time_acked.is_(None), dead_rows.c[SOURCE] == context.name, ~has_id(rows, dead_rows.c.id))
        .order_by(dead_rows.c[ORDER])
        .limit(most)
        .with_for_update(skip_locked=True, of=dead_rows)
    )
    if ids is not None:
        returning = returning.where(context.sql.any_of(dead_rows.c.id, "ids")).params(ids=ids)
    found = connection.execute(returning).all()
    if not found:
        return 0
    chosen = {"seqs": [row.seq for row in found]}
    these = dead.unacked()
    back = (*_RETURNED, *settable(_shared_columns(context, dead), rows))
    now = sa.literal(context.backend.now(connection), sa.BigInteger)
    moved = (
        sa.select(*(dead_rows.c[name] for name in back), now, now.label("due"))
        .where(these)
        .order_by(dead_rows.c[ORDER])
    )
    names = [*back, "time_scheduled", "time_next"]
    connection.execute(sa.insert(rows).from_select(names, moved.params(chosen), include_defaults=False))
    connection.execute(sa.delete(dead_rows).where(these), chosen)
    add_totals(connection, dead.table_id, sent=times_sent(row.epoch for row in found))
    return len(found)


def list_dead_letters(context: TableContext, limit: int) -> list[dict[str, Any]]:
    """Return unacked dead letters, latest first."""
    dead = dead_letter_table(context)
    dead_rows = dead.rows
    chosen = (dead_rows.c[name] for name in ("id", DIED, REASON, "last_error", "epoch", "group_id"))
    with context.backend.snapshot() as connection:
        found = connection.execute(
            sa.select(*chosen, dead_rows.c.message.label("payload"))
            .where(dead_rows.c.time_acked.is_(None), dead_rows.c[SOURCE] == context.name)
            .order_by(dead_rows.c[DIED].desc(), dead_rows.c.seq.desc())
            .limit(limit)
        )
        return [dict(row) for row in found.mappings()]


def dead_letter_table(context: TableContext) -> TableContext:
    """Return the dead-letter table of a table.

    Raises `InvalidArgumentError` if it has none. Raises `SchemaError` if that is missing.
    """
    name = context.options.dead_letter
    if name is None:
        raise InvalidArgumentError(
            f"message table {context.name!r} has no dead-letter table. Set dead_letter or max_attempts with alter()"
        )
    if context.dead is None:
        raise SchemaError(
            f"message table {context.name!r}: its dead-letter table {name!r} is missing. Create the dead-letter table"
            f" with alter(dead_letter={name!r})"
        )
    return context.dead


def may_bury(context: TableContext) -> bool:
    """Return whether the dead-letter table exists; log a warning if it is missing."""
    try:
        dead_letter_table(context)
    except SchemaError as error:
        _log.warning("messages that must move to the dead-letter table stay, and their groups wait: %s", error)
        return False
    return True


def _shared_columns(context: TableContext, dead: TableContext) -> tuple[str, ...]:
    own = user_column_names(context.rows)
    for name in own:
        if name not in dead.rows.c:
            raise SchemaError(
                f"dead_letter: {dead.name!r} lacks the column {name!r} of message table {context.name!r}. Add the"
                " column"
            )
    return own
