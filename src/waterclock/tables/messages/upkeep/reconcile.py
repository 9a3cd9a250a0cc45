"""Repairs groups whose rows contradict their messages, or whose owner is gone.

Every operation on messages updates their groups in the same transaction, and a trigger marks changes by plain SQL for
the next claim. But no trigger marks a group if plain SQL deletes its messages or changes its row, if its owner's row is
gone, or if our code has a bug. So consumers check the groups of a table once every ``poll_interval``. The check only
reads; its findings are verified under the groups' locks before anything is changed.

A check reads the messages of each group from the first unfinished one (the head). A whole check also looks for
unfinished messages before the head, and for those of groups without a row. On PostgreSQL, one check in `WHOLE_EVERY` is
whole, because it reads all finished messages that an old snapshot shows; on other databases, each is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import in_a_line, said_of
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups, heartbeats, message_tables
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import RefusedError, UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.consumers import is_ownerless, release_idle, release_lapsed, release_ownerless
from waterclock.tables.groups.first_positions import SEARCHED_AT_ONCE, first_values, searches_for
from waterclock.tables.groups.group_state import (
    contradicts,
    has_lost_its_place,
    lock_free_groups,
    settle,
    starts_of,
    these_groups,
)
from waterclock.tables.messages.rows.process_heartbeat import LASTS
from waterclock.tables.messages.upkeep.ended_rows import delete_ended, delete_left_over, is_left_over
from waterclock.tables.messages.upkeep.lost_groups import LostGroups, add_lost, find_lost
from waterclock.tables.model.claims.bounds import SAVE_EVERY, UNASSIGNED
from waterclock.tables.model.timing.sweeps import LARGEST_CHUNK, WHOLE_EVERY
from waterclock.time import MAX_NS

# Waits for no other process that routes or saves.
_FREE = sa.select(message_tables.c.table_id).where(message_tables.c.table_id == sa.bindparam("table"))
_SAVING = (
    sa.update(message_tables)
    .where(message_tables.c.table_id.in_(_FREE.with_for_update(skip_locked=True)))
    .values(bounds=sa.bindparam("text"))
)

_KEY = groups.c.table_id, groups.c.group_id
_PROCESSES = (
    sa.select(sa.func.count())
    .select_from(heartbeats)
    .where(
        heartbeats.c.table_id == sa.bindparam("table"), heartbeats.c.beat_at > sa.bindparam("beat", type_=sa.BigInteger)
    )
)

_log = logging.getLogger(__name__)


def heal(context: TableContext, *, idle: bool = False) -> bool:
    """Check some groups if that is due, and settle those that contradict their messages.

    Returns whether some were settled, so that more may be claimable.

    ``idle`` says whether the caller found less work than it could do.
    """
    sweeps = context.sweeps
    if context.sql.keeps_ended and (context.options.groups or context.options.turns_by):
        delete_ended(context)
    if context.options.groups is None:
        if moments.monotonic_ns() >= sweeps.due_at:
            _save_bounds_of_rows(context)
        return False
    healed = 0
    while sweeps.is_due(idle=idle) and sweeps.begin():
        healed += _check_chunk(context)
        if not sweeps.goes_on:
            break
    return healed > 0


def _save_bounds_of_rows(context: TableContext) -> None:
    """Write the bounds of a table without groups, if it has any and that is due again."""
    if not (context.rows_have_bounds or (context.options.turns_by is not None and context.sql.begins_at_bounds)):
        context.sweeps.due_at = MAX_NS
    elif context.reached.saved.is_due():
        _save_bounds(context)
        context.sweeps.due_at = moments.monotonic_ns() + int(SAVE_EVERY * 1_000_000_000)


def _check_chunk(context: TableContext) -> int:
    """Check and settle the next groups of a round that another thread does not check; return how many were settled."""
    sweeps, every = context.sweeps, context.options.poll_interval
    began = moments.monotonic_ns()
    try:
        if context.reached.saved.is_due():
            _save_bounds(context)
        look, healed = _check_some(context)
    except BaseException as error:
        sweeps.give_up(every)
        if not isinstance(error, Exception):
            raise
        # The claim that follows reports the database's error, or works without this.
        _log.info("cannot check the groups of table %r now: %s", context.name, in_a_line(said_of(error)))
        return 0
    sweeps.end(look.place, moments.monotonic_ns() - began, look.took, look.processes, every)
    return healed


def _check_some(context: TableContext) -> tuple[_CheckedGroups, int]:
    """Check the next groups of a round; return the result, and how many groups were settled."""
    sweeps, saved, backend = context.sweeps, context.reached.saved, context.backend
    is_sometimes_whole = not context.sql.one_writer
    if is_sometimes_whole and sweeps.after is None:
        sweeps.begin_round(whole=not 0 <= backend.now_about() - saved.checked_whole_at < WHOLE_EVERY)
    look = _look(context, sweeps.after, sweeps.chunk, whole=sweeps.is_whole)
    healed = _settle_found(context, look)
    sweeps.has_left |= healed < len(look.wrong) + len(look.lost)
    if is_sometimes_whole and sweeps.is_whole and look.place is None and not sweeps.has_left:
        saved.checked_whole_at = backend.now_about()
    return look, healed


def _save_bounds(context: TableContext) -> None:
    """Write the bounds of searches, so that a new process begins with them."""
    reached = context.reached
    text = reached.saved.changed(reached.routed, reached.groups.of_unassigned(), reached.sleeping.of_unassigned())
    if text is None:
        return
    try:
        context.backend.transact(lambda own: own.execute(_SAVING, {"table": context.table_id, "text": text}))
    except (RefusedError, UnavailableError) as error:
        _log.info("cannot save the lower bounds of searches in table %r: %s", context.name, in_a_line(said_of(error)))
    else:
        reached.saved.written(text)


def heal_all(context: TableContext) -> int:
    """Check all groups now: release those of dead consumers, and settle wrong ones. For tables without consumers.

    Returns the number of dead consumers plus the number of wrong groups.
    """
    if context.options.groups is None:
        return 0
    healed = 0
    if context.options.groups == "exclusive":
        while dead := context.backend.transact(lambda own: _release(context, own)):
            healed += dead
    last: _RoundPlace | None = None
    while True:
        look = _look(context, last, LARGEST_CHUNK, whole=True)
        last = look.place
        healed += _settle_found(context, look)
        if last is None:
            return healed


def _release(context: TableContext, connection: sa.Connection) -> int:
    now = context.backend.now(connection)
    if context.options.group_idle is not None:
        release_idle(context, connection, now)
    return release_lapsed(context, connection, now)


def _settle_found(context: TableContext, look: _CheckedGroups) -> int:
    """Settle the groups that a check found, as `settle_wrong`."""

    def settle_all(own: SqlConnection) -> int:
        if look.lost:
            add_lost(context, own, look.lost)
        return settle_wrong(context, own, [*look.wrong, *look.lost])

    return context.backend.transact(settle_all, indexed=True) if look.wrong or look.lost else 0


def settle_wrong(context: TableContext, connection: SqlConnection, names: Sequence[str]) -> int:
    """Settle those of these groups that contradict their messages and are not locked; return how many there were."""
    locked = lock_free_groups(context, connection, names)
    if context.sql.keeps_ended:
        delete_left_over(context, connection, locked)
    wrong = list(connection.scalars(_wrong_of(context, whole=True), {"groups": locked})) if locked else []
    if not wrong:
        return 0
    if context.options.groups == "exclusive":
        release_ownerless(context, connection, wrong)
    else:
        connection.execute(_disowning(context), {"groups": wrong})
    strays = list(connection.scalars(_strays(context), {"groups": wrong}))
    if strays:
        connection.execute(_routing_anew(context), {"seqs": strays})
    settle(context, connection, wrong, from_first=True)
    _log.info("repaired %d groups of table %r that contradicted their messages", len(wrong), context.name)
    return len(wrong)


class _RoundPlace(NamedTuple):
    """How far a round has come."""

    group: str | None  # the last group by its row; None: all were checked
    named: str | None  # the last group by its messages, among which lost ones are looked for; None: all were


class _CheckedGroups(NamedTuple):
    """What a check of some groups found."""

    place: _RoundPlace | None  # None: the round is complete
    wrong: list[str]
    lost: dict[str, str]  # the groups without a row, as in `LostGroups`
    processes: int  # how many processes check the groups of this table
    took: int  # how long it took beyond the round trips, ns


def _look(context: TableContext, after: _RoundPlace | None, most: int, *, whole: bool) -> _CheckedGroups:
    """Check up to ``most`` groups; ``whole`` is as in `contradicts`, and whether to look for groups without a row."""
    names: list[str] = []
    wrong: list[str] = []
    lost = LostGroups(None, {})
    with context.backend.snapshot(indexed=True) as connection:
        living = {"table": context.table_id, "beat": context.backend.now(connection) - LASTS}
        began = moments.monotonic_ns()
        processes = connection.execute(_PROCESSES, living).scalar_one()
        round_trip = moments.monotonic_ns() - began
        trips = 1
        if after is None or after.group is not None:
            trips += 2
            values = {"after": after and after.group, "count": most}
            names += connection.scalars(_some_groups(context, begins=after is None), values)
            if names:
                wrong += _wrong(context, connection, names, whole=whole or context.sql.one_writer)
        if whole and (after is None or after.named is not None):
            trips += 1
            lost = find_lost(context, connection, after and after.named, most)
        took = moments.monotonic_ns() - began - trips * round_trip
    place = _RoundPlace(names[-1] if len(names) == most else None, lost.last)
    return _CheckedGroups(None if place == (None, None) else place, wrong, lost.owners, processes, max(took, 0))


def _wrong(context: TableContext, connection: SqlConnection, names: list[str], *, whole: bool) -> Iterable[str]:
    if whole or not context.sql.begins_at_constants:
        return connection.scalars(_wrong_of(context, whole=whole), {"groups": names})
    wrong: list[str] = []
    for some in pieces(names, SEARCHED_AT_ONCE):
        starts = starts_of(context, connection, some)
        its = {"groups": list(starts), **first_values(starts)}
        wrong += connection.scalars(_wrong_of(context, whole=False, searches=searches_for(len(starts))), its)
    return wrong


@built_once(maxsize=256)
def _some_groups(context: TableContext, *, begins: bool) -> sa.Select[Any]:
    return context.sql.some_names(context.table_id, _KEY, begins=begins)


@built_once(maxsize=256)
def _strays(context: TableContext) -> sa.Select[Any]:
    """Lock grouped messages that plain SQL left without a position, or with an ack held back for no reason."""
    rows = context.rows
    stray = has_lost_its_place(context)
    if context.options.ack_order != "hold":
        stray |= rows.c.ack_held_at.is_not(None)
    its = context.sql.any_of(rows.c.group_id, "groups"), rows.c.time_acked.is_(None), stray
    return sa.select(rows.c.seq).where(*its).order_by(rows.c.seq).with_for_update(skip_locked=True)


def _is_owned() -> sa.ColumnElement[bool]:
    """Return the condition that a sequenced group has an owner, which only a pin sets."""
    return (groups.c.assigned != UNASSIGNED) & (groups.c.pinned == 0)


@built_once(maxsize=256)
def _disowning(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context), _is_owned()).values(assigned=UNASSIGNED)


@built_once(maxsize=256)
def _routing_anew(context: TableContext) -> sa.Update:
    new: dict[str, Any] = {"routed": context.sql.changed}
    if context.options.ack_order != "hold":
        new["ack_held_at"] = None
    return sa.update(context.rows).where(context.unacked()).values(new)


@built_once(maxsize=256)
def _wrong_of(context: TableContext, *, whole: bool, searches: int | None = None) -> sa.Select[Any]:
    wrong = contradicts(context, whole=whole, searches=searches)
    if context.sql.keeps_ended:
        wrong |= is_left_over(context)
    wrong |= is_ownerless() if context.options.groups == "exclusive" else _is_owned()
    these = context.sql.any_key(groups, context.table_id, _KEY, "groups")
    return sa.select(groups.c.group_id).where(these, wrong)
