"""Lower bounds of index searches in a table whose keys take turns: for new messages, next turns and sleeping keys.

A search for new messages begins at a ``seq``, the number of a row: all messages with a lower number are routed. If a
later change may make a routed message due earlier, a trigger makes the message unrouted, with a new number. These
bounds need a database that tells which transactions a snapshot sees (`TableDialect.seen_by`).

MariaDB hides the ids of transactions. There, the bounds advance like those of `bounded_rows`, and that of new messages
is a second, in which the clock stood when the message was put, or changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import leased_keys
from waterclock.tables.databases.mariadb.leased_keys import index_of
from waterclock.tables.databases.mariadb.unrouted_keys import second_of
from waterclock.tables.databases.postgresql.unrouted_keys import BLOCK_BITS, CHANGED_BLOCK, last_drawn
from waterclock.tables.keys import turn_ranges
from waterclock.tables.keys.key_rows import is_unrouted, of_any_key
from waterclock.tables.keys.turn_levels import (
    ASLEEP,
    PACED,
    first_of,
    firsts_of,
    has_turn,
    lows_of_search,
    of_states,
    unknown_level,
    values_of,
)
from waterclock.tables.messages.claiming.bounded_levels import times_of
from waterclock.tables.messages.claiming.bounded_rows import begins_search, note_claimed
from waterclock.tables.model.claims.bounds import LATE_BY, UNASSIGNED, WRITTEN_WITHIN, FirstTimes, Snapshot
from waterclock.tables.model.claims.leased_bound import ClockRead, is_old, slot_of


def advance_keys(context: TableContext) -> None:
    """Search from a table's bounds on, so that these advance, if the last search is old enough."""
    if not begins_search(context):
        return
    if not context.sql.is_bounded:
        _advance_in_pairs(context)
        return
    reached = context.reached
    bound, all_bounds = reached.routed, (reached.groups, reached.sleeping)
    search = bound.begin()
    turns, sleeping = (bounds.begin(UNASSIGNED) for bounds in all_bounds)
    marks = bound.needs_mark or any(bounds.needs_mark(UNASSIGNED) for bounds in all_bounds)
    values = {"start": search.low >> BLOCK_BITS, "marks": marks, **values_of(turns, sleeping)}
    found = context.backend.alone(lambda own: own.execute(_looking(context), values).one(), durable=False)
    if found.drawn is not None and found.drawn + 1 < search.known:  # the numbers were set back
        bound.reset()
    elif found.drawn is not None:
        last = (found.drawn + 1) >> BLOCK_BITS  # later messages draw greater numbers
        end = last if found.block is None else min(found.block, last)
        bound.found_nothing(search, end << BLOCK_BITS, Snapshot(found.now, found.oldest, found.mark))
    reached.groups.note(turns, found)
    times = {ASLEEP: found.asleep, PACED: found.paced}
    firsts = [times[one] for one in sleeping.priorities]
    reached.sleeping.note(sleeping, FirstTimes(found.now, firsts, oldest=found.oldest, mark=found.mark))


class _FoundByKeys:
    """The result of `_looking_in_pairs` for these levels."""

    def __init__(self, levels: Sequence[int], row: Any) -> None:
        self.now, self.second, self.slot, *firsts = row
        self.sleeping = _found_of((ASLEEP, PACED), firsts)
        self.turns = _found_of(levels, firsts[2:])
        self.level = max((one for one in firsts[2 + len(levels) :] if one is not None), default=None)


def _found_of(places: Sequence[int], firsts: Sequence[int | None]) -> dict[int, int]:
    return {one: first for one, first in zip(places, firsts, strict=False) if first is not None}


def _advance_in_pairs(context: TableContext) -> None:
    reached, is_limited = context.reached, context.options.limit is not None
    read_from = moments.monotonic()
    began = context.backend.alone(context.sql.now_without_lock_waits, durable=False)
    if is_limited:
        now = context.backend.now() if began is None else began
        reached.leased.check(ClockRead(read_from, moments.monotonic(), now))
    search, leased = reached.routed.begin(), reached.leased.begin()
    turns, sleeping = (bounds.begin(UNASSIGNED) for bounds in (reached.groups, reached.sleeping))
    known = turn_ranges.known_of(context, lows_of_search(turns))
    lows = of_states(lows_of_search(sleeping)) | turn_ranges.values_of(known)
    values = {"start": search.low, "slot": slot_of(leased.low), **lows}

    def look(connection: SqlConnection) -> _FoundByKeys:
        return _FoundByKeys(sorted(known), connection.execute(_looking_in_pairs(context, len(known)), values).one())

    found = [context.backend.look_at_uncommitted(look), context.backend.alone(look, durable=False)]
    if began is not None and second_of(began) < search.known:  # the server's clock was set back
        reached.routed.reset()
    else:
        end = search.known if began is None else max(search.known, second_of(began - WRITTEN_WITHIN))
        seconds = [one.second for one in found if one.second is not None]
        reached.routed.found_nothing(search, min([end, *seconds]), Snapshot(found[1].now))
    if not context.backend.has_own_clock:
        return
    until, waits = (began or found[0].now) - LATE_BY - WRITTEN_WITHIN, began is None
    firsts = sleeping.firsts(sleeping.unassigned, [one.sleeping for one in found], waits=waits)
    reached.sleeping.note(sleeping, FirstTimes(until, firsts))
    if is_limited:
        slots = [one.slot for one in found if one.slot is not None]
        reached.leased.found(leased, slots, until, waits=waits)
        first = found[1].slot
        if first is not None and is_old(first, found[1].now):
            _renew(context, first)
    firsts = turns.firsts(turns.unassigned, [one.turns for one in found], waits=waits)
    reached.groups.note(turns, FirstTimes(until, firsts))
    if found[1].level is not None:
        reached.groups.learn(UNASSIGNED, found[1].level, most=turn_ranges.MOST_KNOWN)


def _renew(context: TableContext, slot: int) -> None:
    """Move messages of a slot to the current one; the next search follows soon, because later slots may be old, too."""

    def move_some(connection: sa.Connection) -> int:
        seqs = connection.scalars(leased_keys.lock_first(context.rows), {"slot": slot}).all()
        if seqs:
            connection.execute(leased_keys.move(context.rows), {"seqs": seqs})
        return len(seqs)

    for _ in range(leased_keys.MOST_MOVES):
        count = context.backend.transact(move_some, durable=False)
        if count:
            note_claimed(context)
        if count < leased_keys.MOVED_AT_ONCE:
            return


@built_once(maxsize=256)
def _looking_in_pairs(context: TableContext, known: int) -> sa.Select[*tuple[Any, ...]]:
    second = context.sql.block_of(context.rows)
    new = context.sql.by_unrouted_index(sa.select(second).select_from(context.rows), context.rows)
    new = new.where(of_any_key(context)).order_by(second).limit(1).scalar_subquery()
    level, turn = message_keys.c.level, message_keys.c.turn
    turns = [sa.select(turn).where(has_turn(context), one) for one in turn_ranges.of_known(known)]
    levels = [sa.select(level).where(has_turn(context), one) for one in turn_ranges.of_others(known)]
    slot = leased_keys.since()
    leased = sa.select(slot).select_from(context.rows).with_hint(context.rows, index_of(context.rows, "leased"))
    leased = leased.where(slot >= sa.bindparam("slot", type_=sa.BigInteger)).order_by(slot).limit(1)
    is_limited = context.options.limit is not None
    columns = [
        new,
        leased.scalar_subquery() if is_limited else sa.null(),
        *(first_of(context, state) for state in (ASLEEP, PACED)),
        *(turn_ranges.first_of(context, one, level, turn, index="turn") for one in (*turns, *levels)),
    ]
    named = (column.label(f"column_{place}") for place, column in enumerate(columns))
    return sa.select(context.backend.now_sql().label("now"), *named)


@built_once(maxsize=256)
def _looking(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    block = context.sql.block_of(context.rows)
    its = is_unrouted(context), of_any_key(context), block < sa.literal_column(str(CHANGED_BLOCK))
    first = sa.select(block).where(*its).order_by(block).limit(1)
    oldest, mark = context.sql.seen_by(sa.bindparam("marks", type_=sa.Boolean), context.rows)
    return sa.select(
        context.backend.now_sql().label("now"),
        oldest.label("oldest"),
        mark.label("mark"),
        first.scalar_subquery().label("block"),
        last_drawn(context.rows).label("drawn"),
        times_of(firsts_of(context)).label("firsts"),
        unknown_level(context).label("of_unassigned"),
        first_of(context, ASLEEP).label("asleep"),
        first_of(context, PACED).label("paced"),
    )
