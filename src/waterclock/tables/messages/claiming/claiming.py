"""Claims due messages: finds them, and changes their lease, back-off and epoch in the same transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import ConstraintError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import priority_levels
from waterclock.tables.groups.routing import first_and_newest, has_parts_left
from waterclock.tables.keys.key_rows import keys_due
from waterclock.tables.keys.turn_tiers import lows_of
from waterclock.tables.messages.claiming.bounded_keys import advance_keys
from waterclock.tables.messages.claiming.bounded_routing import advance_routed
from waterclock.tables.messages.claiming.bounded_rows import (
    AHEAD,
    advance,
    bounds_of,
    due_from_bounds,
    is_ahead,
    note_claimed,
)
from waterclock.tables.messages.claiming.claim_exclusive import claim_exclusive
from waterclock.tables.messages.claiming.claim_groups_pipelined import claim_pipelined
from waterclock.tables.messages.claiming.claim_keyed import Examined, claim_keyed
from waterclock.tables.messages.claiming.claim_sequenced import claim_sequenced
from waterclock.tables.messages.claiming.group_levels import next_group_due
from waterclock.tables.messages.claiming.lost_claims import TakenBefore, trying
from waterclock.tables.messages.finishing.expiring import expire_more
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.due_slots import due_order
from waterclock.tables.model.row_conditions import is_waiting
from waterclock.tables.model.schema import DUE_SLOT

_log = logging.getLogger(__name__)

_NO_MARKS: dict[int, int] = {}

_OF_GROUPS = {"sequenced": claim_sequenced, "exclusive": claim_exclusive}


def claim(context: TableContext, wanted: Wanted) -> list[Claimed]:
    """Claim due messages for the consumer: by priority, then by due time.

    A claim whose answer was lost is harmless: its leases run out.
    """
    if context.options.groups is not None:
        return _claim_groups(context, wanted) if context.sql.sends_at_once else _claim_in_steps(context, wanted, ())
    if context.options.turns_by is not None:
        return _claim_keyed(context, wanted)
    is_bounded = context.rows_have_bounds
    if is_bounded and not is_ahead(context):
        advance(context)  # before a claim, which must not fail once it has messages
    marks, bounds = context.marks, bounds_of(context) if is_bounded else _NO_MARKS
    chooses = wanted.where is not None or wanted.order
    # In steps, a claim that gets too few messages from the cursor costs more than passing the finished ones behind a
    # bound.
    cursor = _NO_MARKS if chooses or (bounds and not context.sql.is_bounded) else marks.now()
    claimed = _claim_rows(context, wanted, {**bounds, **cursor})
    if is_bounded and claimed:
        note_claimed(context)
    elif is_bounded:
        advance(context)
    if chooses:
        return claimed
    if len(claimed) == wanted.limit:
        marks.advance(claimed)
    elif cursor:
        return _look_back(context, wanted, bounds, cursor, claimed)
    else:
        marks.looked_back(cursor, claimed)
    return claimed


def _look_back(
    context: TableContext,
    wanted: Wanted,
    bounds: Mapping[int, int],
    cursor: Mapping[int, int],
    claimed: list[Claimed],
) -> list[Claimed]:
    marks = context.marks
    if claimed:
        marks.forget()  # the next claim searches from the first message; these messages do not wait for that statement
        return claimed
    marks.look_back()
    if not is_idle(context):
        claimed = _claim_rows(context, wanted, bounds)
    marks.looked_back(cursor, claimed)
    return claimed


def _claim_groups(context: TableContext, wanted: Wanted) -> list[Claimed]:
    """Claim messages of groups in one round trip, and the rest step by step."""
    claimed: list[Claimed] = []
    is_unbalanced = wanted.consumer in context.unbalanced
    if context.options.ungrouped != "free" and not is_unbalanced:
        claimed, more = claim_pipelined(context, wanted)
        if not more or len(claimed) == wanted.limit:
            return claimed
        wanted = replace(wanted, limit=wanted.limit - len(claimed))
    try:
        found = _claim_in_steps(context, wanted, claimed)
    except WaterclockError as error:
        if not claimed:
            raise
        _log.warning(
            "a claim from table %s ends early: %s", context.name, error
        )  # the consumer already has its messages
        if wanted.unanswered is not None:
            wanted.unanswered.doubt(moments.monotonic_ns())
        return claimed
    if not claimed:
        return found
    again = {one.row.seq for one in found}
    return [*(one for one in claimed if one.row.seq not in again), *found]


def _claim_in_steps(context: TableContext, wanted: Wanted, before: Sequence[Claimed]) -> list[Claimed]:
    take = _OF_GROUPS[context.options.groups or "sequenced"]
    durable = context.options.max_attempts is not None
    is_again = False
    part = 0
    last: int | None = None  # the greatest seq to route
    is_searched = context.sql.begins_at_bounds and not context.sql.is_bounded
    if is_searched:
        advance_routed(context, wanted.consumer or UNASSIGNED)

    while True:
        part += 1
        take_step = partial(take, context, wanted=wanted, part=part)
        try:
            found = context.backend.transact(
                trying(context, wanted, before, take_step) if context.options.groups == "exclusive" else take_step,
                indexed=True,
                durable=durable,
            )
        except ConstraintError:  # another thread has just registered the same consumer
            if is_again:
                raise
            is_again = True
            continue
        if isinstance(found, TakenBefore):
            return found.claimed
        claimed, more = found
        if claimed and is_searched:
            note_claimed(context)
        if claimed or not more:  # claimable messages may lie behind a hundred thousand of a leased group
            return claimed
        expire_more(context)  # or behind expired ones
        if not has_parts_left(context, part):
            # Messages that are put from now on wait for the next claim. Otherwise this one might never end.
            first_new, newest = context.backend.alone(partial(first_and_newest, context), durable=False)
            last = newest if last is None else last
            if first_new is not None and last is not None and first_new > last:
                return []


def _claim_keyed(context: TableContext, wanted: Wanted) -> list[Claimed]:
    if context.sql.begins_at_bounds:
        advance_keys(context)
    examined: Examined | None = None
    while True:
        claimed, examined = context.backend.transact(
            partial(claim_keyed, context, wanted=wanted, examined=examined),
            indexed=True,
            durable=context.options.max_attempts is not None,
        )
        if claimed or examined is None:
            context.marks.had_enough = len(claimed) == wanted.limit
            if claimed:
                note_claimed(context)
            return claimed


def is_idle(context: TableContext) -> bool:
    """Return whether certainly nothing is due, if that is cheaper than a claim; False if it may be."""
    walks = context.marks.walks
    options = context.options
    if options.groups is not None or options.turns_by is not None:
        return False
    if bounds_of(context):
        if context.sql.is_bounded:  # a claim is a single statement, too
            return False
        advance(context)  # in place of the claim that may be omitted
        return context.backend.alone(partial(_is_nothing_due, context), durable=False)
    if not walks.should_ask():
        return False
    began = moments.monotonic()
    question = _any_due(context.rows, context.backend.now_sql())
    if context.sql.one_writer:
        with context.backend.snapshot(indexed=True) as connection:
            found = connection.execute(question).scalar()
    else:
        found = context.backend.alone(lambda own: own.execute(question).scalar(), durable=False)
    walks.asked(moments.monotonic() - began)
    return found is None


def _is_nothing_due(context: TableContext, connection: SqlConnection) -> bool:
    found = due_from_bounds(context, connection)
    return found is not None and (found[0] is None or found[0] > found[1])


@built_once(maxsize=256)
def _any_due(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Select[Any]:
    # In the order of the claim's index, so that no planner scans the table instead.
    return (
        sa.select(rows.c.priority)
        .where(is_waiting(rows), rows.c.time_next <= now)
        .order_by(rows.c.priority.desc())
        .limit(1)
    )


def claim_within(context: TableContext, connection: SqlConnection, wanted: Wanted) -> list[Claimed]:
    """Claim without a cursor, as `claim`, in a transaction that does more than this."""
    if context.options.groups is not None:
        return _OF_GROUPS[context.options.groups](context, connection, wanted, part=None)[0]
    if context.options.turns_by is not None:
        return claim_keyed(context, connection, wanted)[0]
    wanted = replace(wanted, about=context.reached.about_now())
    return context.sql.claim(connection, context.rows, wanted, bounds_of(context), context.backend.now_sql())


def _claim_rows(context: TableContext, wanted: Wanted, begin: Mapping[int, int]) -> list[Claimed]:
    if context.rows.info[DUE_SLOT]:
        wanted = replace(wanted, about=context.reached.about_now())
    return context.backend.alone(
        lambda own: context.sql.claim(own, context.rows, wanted, begin, context.backend.now_sql()),
        # Leases need not survive a crash of the computer, but the number of attempts must, if it is limited.
        durable=context.options.max_attempts is not None,
    )


def next_due(
    context: TableContext,
    connection: SqlConnection,
    where: sa.ColumnElement[bool] | None = None,
    consumer: str | None = None,
    max_groups: int | None = None,
) -> tuple[int | None, int]:
    """Return when an unleased message may be due, and the current time; both ns. Reads only.

    The former is None if nothing waits, and the current time if something may be due already.

    ``where`` is a selection, as in a claim; None: all. ``consumer`` and ``max_groups`` matter in a table with groups.
    """
    now = context.backend.now_sql()
    if where is not None:
        due, at = connection.execute(_next_due_chosen(context.rows, now, where)).one()
        return due, at
    if context.options.turns_by is not None:
        lows = lows_of(context)
        due, at = connection.execute(keys_due(context, lows.known), lows.values).one()
        return due, at
    if not context.options.groups:
        found = due_from_bounds(context, connection, ahead=AHEAD)
        if found is None:
            found = connection.execute(_next_due_row(context.rows, now)).one()
        due, at = found
        return due, at
    return next_group_due(context, connection, consumer, max_groups)


@built_once(maxsize=256)
def _next_due_row(rows: sa.Table, now: sa.ColumnElement[int]) -> sa.Select[Any, Any]:
    unacked = is_waiting(rows)
    levels = priority_levels(rows)
    earliest = (
        sa.select(rows.c.time_next)
        .where(unacked, rows.c.priority == levels.c.priority)
        .order_by(*due_order(rows))
        .limit(1)
        .scalar_subquery()
    )
    due = sa.select(earliest.label("due")).select_from(levels).subquery()
    return sa.select(sa.func.min(due.c.due), now)


@built_once(maxsize=256)
def _next_due_chosen(rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool]) -> sa.Select[Any, Any]:
    return sa.select(sa.func.min(rows.c.time_next), now).where(rows.c.time_acked.is_(None), where)
