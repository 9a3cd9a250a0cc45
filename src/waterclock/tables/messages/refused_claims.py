"""Claiming past messages that the database refuses to let be claimed, such as one for which a user's trigger raises.

A refused claim is narrowed down to its first message, or its first group. If something behind it can be claimed, it is
passed by for `PASSED_BY_FOR`; if not, the refusal is about more than single messages, and nothing is noted. Claims that
are refused soon after that are not narrowed down (`Narrowing`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from waterclock.database.kept import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.table_catalogue import groups
from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError, WaterclockError
from waterclock.quoting import in_a_line
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.heads import UNASSIGNED, lock_free_groups, settle
from waterclock.tables.groups.routing import route_these, unrouted_groups
from waterclock.tables.messages.process_heartbeat import process_heartbeat
from waterclock.tables.messages.refused_rows import pass_by_refused
from waterclock.tables.model.claim import Claimed, Wanted
from waterclock.tables.model.passed_by import PASSED_BY_FOR
from waterclock.tables.model.schema import is_waiting

MOST_TRIES = 24
"""Claims, or routings, that one call tries: one refused of a thousand is found in 21."""

FIRST_TRIES = 7
"""Routings, down to quarters, after which a call that routed nothing takes the refusal for one of all messages."""

MOST_GROUPS = 4
"""Groups that one call postpones before it takes the refusal for one of all groups, and undoes that."""

_Claim = Callable[[TableContext, Wanted], list[Claimed]]

_log = logging.getLogger(__name__)


def excluding(context: TableContext, where: sa.ColumnElement[bool] | None) -> sa.ColumnElement[bool] | None:
    """Add to a choice of messages that they are not passed by."""
    passed = context.refused_seqs.now()
    return _excluding(context.rows, where, passed) if passed else where


def claim_past(context: TableContext, wanted: Wanted, error: WaterclockError, claim: _Claim) -> list[Claimed]:
    """Claim again what the database refused with ``error``, past the messages of which it is so.

    Raises
    ------
    RefusedError, InvalidArgumentError
        If it lets none of those behind be claimed either.
    """
    if isinstance(error, ForbiddenError):  # a missing privilege concerns all messages
        raise error
    if context.dead is not None:
        with context.backend.snapshot() as connection:
            if not context.sql.column_names(connection, context.dead.name):  # the caller looks at the table again
                raise error
    if not context.narrowing.may_begin():
        raise error
    past = _past_rows if context.options.groups is None else _past_groups
    with context.narrowing.timed():
        return past(context, wanted, claim, error)


def _past_rows(context: TableContext, wanted: Wanted, claim: _Claim, error: WaterclockError) -> list[Claimed]:
    refused: list[int] = []
    most = wanted.limit
    for _ in range(MOST_TRIES):
        with context.backend.snapshot(indexed=True) as connection:
            due = list(connection.scalars(_due(context, wanted, refused).limit(most)))
        if not due:
            break
        chosen = _these(context.rows.c.seq, due)
        try:
            claimed = claim(context, replace(wanted, where=chosen if wanted.where is None else wanted.where & chosen))
        except ForbiddenError:
            raise
        except (RefusedError, InvalidArgumentError) as another:
            error = another
            if len(due) == 1:
                refused += due
            most = max(1, len(due) // 2)
            continue
        if claimed and refused:
            context.refused_seqs.note(refused)
            _report(context, f"messages with seq {', '.join(map(str, refused))}", error)
        return claimed
    raise error


def _due(context: TableContext, wanted: Wanted, refused: Sequence[int]) -> sa.Select[Any]:
    rows = context.rows
    order = wanted.order or (rows.c.priority.desc(), rows.c.time_next, rows.c.seq)
    chosen = sa.select(rows.c.seq).where(is_waiting(rows), rows.c.time_next <= context.backend.now_sql())
    if wanted.where is not None:
        chosen = chosen.where(wanted.where)
    if refused:
        chosen = chosen.where(~_these(rows.c.seq, refused))
    return chosen.order_by(*order)


def _these(seq: sa.ColumnElement[int], seqs: Sequence[int]) -> sa.ColumnElement[bool]:
    # As literals: claims bind their own values only.
    return seq.in_([sa.literal_column(f"{one:d}", sa.BigInteger) for one in seqs])


@built_once(maxsize=64)
def _excluding(rows: sa.Table, where: sa.ColumnElement[bool] | None, seqs: frozenset[int]) -> sa.ColumnElement[bool]:
    others = ~_these(rows.c.seq, sorted(seqs))
    return others if where is None else where & others


def _past_groups(context: TableContext, wanted: Wanted, claim: _Claim, error: WaterclockError) -> list[Claimed]:
    _pass_by_unrouted(context)
    postponed: list[str] = []
    for _ in range(MOST_GROUPS):
        try:
            claimed = claim(context, replace(wanted, limit=1))
        except ForbiddenError:
            raise
        except (RefusedError, InvalidArgumentError) as another:
            error = another
            # Looked up now, since a claim that heals groups may have changed which one is the first.
            with context.backend.snapshot(indexed=True) as connection:
                first = connection.execute(_first_group(context, wanted.consumer or UNASSIGNED)).scalar()
            if first is None:
                break
            context.backend.transact(lambda own, first=first: own.execute(_postponing(context, first)))
            if first not in postponed:
                postponed.append(first)
            continue
        new = set(postponed) - context.refused_groups.now()
        if not claimed and new:
            break
        if new:
            context.refused_groups.note(new)
            _report(context, f"the first messages of groups {', '.join(map(repr, sorted(new)))}", error)
        return claimed
    if postponed:
        context.backend.transact(lambda own: _settle(context, own, postponed))
    raise error


def _pass_by_unrouted(context: TableContext) -> None:
    """Route new messages to their groups, except for groups in which the database refuses that."""
    with context.backend.snapshot(indexed=True) as connection:
        names = unrouted_groups(context, connection)

    def route_some(some: Sequence[str]) -> int:
        context.backend.transact(lambda own: route_these(context, own, some), indexed=True)
        return len(some)

    routed, refusal, _ = pass_by_refused(names, route_some, FIRST_TRIES)
    if not routed or refusal is None:
        return
    with context.backend.snapshot(indexed=True) as connection:
        names = unrouted_groups(context, connection)
    _, refusal, refused = pass_by_refused(names, route_some, MOST_TRIES)
    if refusal is not None:
        context.refused_groups.note(refused)
        _report(context, f"new messages of groups {', '.join(map(repr, refused))}", refusal)


def _first_group(context: TableContext, me: str) -> sa.Select[Any]:
    """Find the group with which a claim begins."""
    return (
        sa.select(groups.c.group_id)
        .where(
            groups.c.table_id == context.table_id,
            groups.c.assigned.in_([UNASSIGNED, me]),
            groups.c.ready_at <= context.backend.now_sql(),
        )
        .order_by(groups.c.priority.desc(), groups.c.assigned.desc(), groups.c.ready_at, groups.c.first_seq)
        .limit(1)
    )


def _postponing(context: TableContext, name: str) -> sa.Update:
    # A change of the group, or a look that finds that this contradicts its messages, makes it due again before.
    now = context.backend.now_sql()
    its = (groups.c.table_id == context.table_id) & (groups.c.group_id == name)
    return sa.update(groups).where(its, groups.c.ready_at <= now).values(ready_at=now + PASSED_BY_FOR)


def _settle(context: TableContext, connection: SqlConnection, names: Sequence[str]) -> None:
    settle(context, connection, lock_free_groups(context, connection, names))


def _report(context: TableContext, what: str, error: WaterclockError) -> None:
    reason = f"{what} are passed by for {PASSED_BY_FOR // 1_000_000_000} s: {error}"
    process_heartbeat(context).note_passed_by(reason)
    _log.warning("cannot claim from %r: %s", context.name, in_a_line(reason))
