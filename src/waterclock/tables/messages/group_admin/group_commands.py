"""Runs operators' commands on groups. Leased messages are left alone, unless a command is forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.schema.table_catalogue import groups, message_tables
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.totals import add_totals
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.acking import release_behind
from waterclock.tables.groups.group_state import lock_groups, settle
from waterclock.tables.groups.routing import route
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.epochs import times_sent_sql
from waterclock.tables.model.row_conditions import ack_values, not_acked, reason_to_keep


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The effect of a command, or of a dry run.

    Attributes
    ----------
    done
        How many messages it changed; for commands about whole groups, how many groups.
    skipped
        How many messages it left unchanged: in flight, or blocked by another one.
    """

    done: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The messages of a group that a command changes."""

    seqs: list[int]  # the messages to change, in order
    in_flight: int  # how many messages of the group are leased
    first_out: int | None  # the position of the first leased message; None if no message is leased
    skipped: int  # how many of the messages in flight are left alone
    now: int  # the current time, ns
    group: sa.Row[Any] | None  # the group's row; None if it has none


def choose(
    context: TableContext,
    connection: sa.Connection,
    group_id: str,
    *,
    count: int | None,
    force: bool,
    dry_run: bool,
    further: Sequence[str] = (),  # further groups to lock with it
) -> Chosen:
    """Lock a group, choose the first ``count`` messages that may be changed, and take the turn to route.

    It waits for locks of other transactions before it takes the turn. Otherwise all new messages of the table would
    wait for them, too.
    """
    names = [group_id, *further]
    lock_groups(context, connection, names)
    if not dry_run and (count != 0 or force):
        connection.execute(_locking(context, count, force=force), {"of": group_id})
    take_turn(context, connection)
    route(context, connection)
    noted = lock_groups(context, connection, names)
    rows = context.rows
    now = context.backend.now(connection)
    found = connection.execute(
        sa.select(rows.c.seq, rows.c.position, rows.c.claim_id, rows.c.time_next)
        .where(*_placed(context))
        .order_by(rows.c.position),
        {"of": group_id},
    ).all()
    out = {
        row.seq: row.position
        for row in found
        if row.claim_id is not None and row.time_next is not None and row.time_next > now
    }
    seqs = [row.seq for row in found if force or row.seq not in out][:count]
    first_out = next(iter(out.values()), None)
    return Chosen(seqs, len(out), first_out, 0 if force else len(out), now, noted.get(group_id))


def _placed(context: TableContext) -> tuple[sa.ColumnElement[bool], ...]:
    rows = context.rows
    unacked = rows.c.time_acked.is_(None), rows.c.ack_held_at.is_(None)
    return rows.c.group_id == sa.bindparam("of"), rows.c.position.is_not(None), *unacked


def _locking(context: TableContext, count: int | None, *, force: bool) -> sa.Select[Any]:
    """Return the statement that locks the routed messages of group ``of`` for `choose`; with 0, the leased ones."""
    rows = context.rows
    claimed = rows.c.claim_id.is_not(None)
    waits = sa.not_(claimed) | (rows.c.time_next <= context.backend.now_sql())
    which = claimed if count == 0 else sa.true() if force else waits
    chosen = sa.select(rows.c.seq).where(*_placed(context), which).order_by(rows.c.position)
    return chosen.limit(count or None).with_for_update()


def take_turn(context: TableContext, connection: sa.Connection) -> None:
    """Take the turn to route: no consumer routes until the transaction ends."""
    turn = sa.select(message_tables.c.table_id).where(message_tables.c.table_id == context.table_id)
    connection.execute(turn.with_for_update())


def ensure_group(context: TableContext, connection: sa.Connection, group_id: str) -> sa.Row[Any]:
    """Lock a group's row, created if missing; the caller has the turn to route."""
    noted = lock_groups(context, connection, [group_id])
    if group_id not in noted:
        connection.execute(sa.insert(groups).values(table_id=context.table_id, group_id=group_id, tail=0, priority=0))
        noted = lock_groups(context, connection, [group_id])
    return noted[group_id]


def in_parts(seqs: Sequence[int], work: Callable[[Sequence[int]], object]) -> None:
    """Split the work into statements of bounded size."""
    for part in pieces(seqs):
        work(part)


def sent_before(context: TableContext, connection: sa.Connection, seqs: Sequence[int]) -> int:
    """Return how often messages were sent; their removal adds it to the table's total."""
    rows = context.rows
    epochs = sa.select(times_sent_sql(rows.c.epoch)).where(context.unacked())
    counts: list[int] = []
    in_parts(seqs, lambda part: counts.append(int(connection.execute(epochs, {"seqs": part}).scalar() or 0)))
    return sum(counts)


def purge(
    context: TableContext, connection: sa.Connection, group_id: str, count: int | None, *, force: bool, dry_run: bool
) -> GroupChange:
    chosen = choose(context, connection, group_id, count=count, force=force, dry_run=dry_run)
    if not dry_run:
        rows = context.rows
        statement = sa.delete(rows).where(context.unacked())
        sent = sent_before(context, connection, chosen.seqs)
        in_parts(chosen.seqs, lambda part: connection.execute(statement, {"seqs": part}))
        settle(context, connection, [group_id])
        add_totals(connection, context.table_id, sent=sent)
    return GroupChange(len(chosen.seqs), chosen.skipped)


def skip_head(
    context: TableContext, connection: sa.Connection, group_id: str, *, force: bool, dry_run: bool
) -> GroupChange:
    """Ack the first message without handling it."""
    chosen = choose(context, connection, group_id, count=1, force=True, dry_run=dry_run)
    if not chosen.seqs:
        return GroupChange(0)
    if chosen.in_flight and not force:
        return GroupChange(0, 1)
    if not dry_run:
        rows = context.rows
        why = reason_to_keep(rows, sa.literal("skipped by an operator", sa.Text))
        connection.execute(
            sa.update(rows)
            .where(rows.c.seq == chosen.seqs[0], not_acked(rows))
            .ordered_values(*ack_values(rows, context.backend.now_sql(), by_claim=False), (rows.c.last_error, why))
        )
        settle(context, connection, [group_id])
    return GroupChange(1)


def pause(
    context: TableContext, connection: sa.Connection, group_id: str, until: int | None, *, dry_run: bool
) -> GroupChange:
    """Stop sending messages of a group until then (ns); None: end its pause."""
    chosen = choose(context, connection, group_id, count=0, force=False, dry_run=dry_run)
    if until is None and (chosen.group is None or chosen.group.paused_until is None):
        return GroupChange(0)
    if not dry_run:
        ensure_group(context, connection, group_id)
        _set(context, connection, group_id, paused_until=until)
        settle(context, connection, [group_id])
    return GroupChange(1, chosen.in_flight if until is not None else 0)


def close(context: TableContext, connection: sa.Connection, group_id: str, *, dry_run: bool) -> GroupChange:
    """Release a group from its owner as soon as none of its messages is in flight."""
    chosen = choose(context, connection, group_id, count=0, force=False, dry_run=dry_run)
    if chosen.group is None or chosen.group.assigned == UNASSIGNED:
        return GroupChange(0, chosen.in_flight)
    if chosen.group.pinned:
        owner = quoted(chosen.group.drain_to or chosen.group.assigned)
        raise InvalidArgumentError(
            f"cannot close group {quoted(group_id)} of table {context.name!r}: it is pinned to {owner}. Unpin the group"
            " first"
        )
    if not dry_run:
        _hand_to(context, connection, group_id, UNASSIGNED, chosen)
    return GroupChange(1, chosen.in_flight)


def release(
    context: TableContext, connection: sa.Connection, group_id: str, *, force: bool, dry_run: bool
) -> GroupChange:
    """Release a group from its consumer; with force, also its messages in flight."""
    chosen = choose(context, connection, group_id, count=0, force=force, dry_run=dry_run)
    if chosen.in_flight and not force:
        return GroupChange(0, chosen.in_flight)
    if not dry_run:
        release_behind(context, connection, [(group_id, chosen.first_out)])  # not yet being handled
        release_behind(context, connection, [(group_id, -1)], started=True)
        if chosen.group is not None and not chosen.group.pinned:
            _set(context, connection, group_id, assigned=UNASSIGNED, drain_to=None)
        settle(context, connection, [group_id])
    return GroupChange(chosen.in_flight)


def pin(
    context: TableContext, connection: sa.Connection, group_id: str, consumer: str, *, dry_run: bool
) -> GroupChange:
    """Pin a group to one consumer as soon as none of its messages is in flight with another."""
    chosen = choose(context, connection, group_id, count=0, force=False, dry_run=dry_run)
    if not dry_run:
        ensure_group(context, connection, group_id)
        _set(context, connection, group_id, pinned=1)
        _hand_to(context, connection, group_id, consumer, chosen)
    return GroupChange(1, chosen.in_flight)


def unpin(context: TableContext, connection: sa.Connection, group_id: str, *, dry_run: bool) -> GroupChange:
    chosen = choose(context, connection, group_id, count=0, force=False, dry_run=dry_run)
    if chosen.group is None or not chosen.group.pinned:
        return GroupChange(0)
    if not dry_run:
        _set(context, connection, group_id, pinned=0)
        _hand_to(context, connection, group_id, UNASSIGNED, chosen)
    return GroupChange(1, chosen.in_flight)


def _hand_to(context: TableContext, connection: sa.Connection, group_id: str, consumer: str, chosen: Chosen) -> None:
    waits = context.options.groups == "exclusive" and chosen.in_flight and chosen.group is not None
    if waits and chosen.group is not None and chosen.group.assigned != consumer:
        _set(context, connection, group_id, drain_to=consumer)
    else:
        _set(context, connection, group_id, assigned=consumer, drain_to=None)
    settle(context, connection, [group_id])


def _set(context: TableContext, connection: sa.Connection, group_id: str, **values: Any) -> None:
    one = context.sql.of_table(groups.c.table_id, context.table_id) & (groups.c.group_id == group_id)
    connection.execute(sa.update(groups).where(one).values(values))
