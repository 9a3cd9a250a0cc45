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
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import leased_keys
from waterclock.tables.databases.mariadb.leased_keys import index_of
from waterclock.tables.databases.mariadb.unrouted_keys import second_of
from waterclock.tables.databases.postgresql.unrouted_keys import BLOCK_BITS, CHANGED_BLOCK, last_drawn
from waterclock.tables.keys.key_rows import is_unrouted, of_any_key
from waterclock.tables.keys.turn_tiers import (
    ASLEEP,
    PACED,
    first_awake,
    learn_tiers,
    others_in_turn,
    starts,
    turns_of_known,
)
from waterclock.tables.messages.claiming.bounded_groups import read_owner
from waterclock.tables.messages.claiming.bounded_rows import begins_search, note_claimed
from waterclock.tables.model.claims.bounds import (
    LATE_BY,
    UNASSIGNED,
    WRITTEN_WITHIN,
    BoundedSearch,
    FirstTimes,
    Snapshot,
)
from waterclock.tables.model.claims.leased_bound import ClockRead, is_old, slot_of


def advance_keys(context: TableContext) -> None:
    """Search from a table's bounds on, so that these advance, if the last search is old enough."""
    if not begins_search(context):
        return
    reached, backend = context.reached, context.backend
    in_pairs, is_limited = not context.sql.is_bounded, context.options.limit is not None
    began: int | None = None
    if in_pairs:
        read_from = moments.monotonic()
        began = backend.alone(context.sql.now_without_lock_waits, durable=False)
        if is_limited:
            reached.leased.check(ClockRead(read_from, moments.monotonic(), backend.now() if began is None else began))
    all_bounds = reached.groups, reached.sleeping
    new, leased = reached.routed.begin(), reached.leased.begin()
    turns, sleeping = (bounds.begin(UNASSIGNED) for bounds in all_bounds)
    lows = starts(context, new.low, turns.lows, sleeping.lows)
    marks = reached.routed.needs_mark or any(bounds.needs_mark(UNASSIGNED) for bounds in all_bounds)
    values = {**lows.values, "slot": slot_of(leased.low), "marks": marks}

    def look(connection: SqlConnection) -> _FoundByKeys:
        found = connection.execute(_looking(context, lows.known), values).one()
        return _FoundByKeys(sorted(turns.priorities)[: lows.known], found)

    found = [backend.look_at_uncommitted(look)] if in_pairs else []
    found.append(backend.alone(look, durable=False))
    _note_new(context, new, began, found)
    if in_pairs and not backend.has_own_clock:
        return
    seen, waits = found[0], in_pairs and began is None
    until = (began or seen.now) - LATE_BY - WRITTEN_WITHIN if in_pairs else seen.now
    of_each = (turns, [one.turns.firsts for one in found]), (sleeping, [one.sleeping for one in found])
    for bounds, (search, times) in zip(all_bounds, of_each, strict=True):
        firsts = search.firsts(search.unassigned, times, waits=waits)
        bounds.note(search, FirstTimes(until, firsts, oldest=seen.oldest, mark=seen.mark))
    if (tier := found[-1].turns.unknown) is not None:
        learn_tiers(context, [tier])
    if in_pairs and is_limited:
        reached.leased.found(leased, [one.slot for one in found if one.slot is not None], until, waits=waits)
        slot = found[-1].slot
        if slot is not None and is_old(slot, found[-1].now):
            _renew(context, slot)


class _FoundByKeys:
    """The result of `_looking` for these tiers."""

    def __init__(self, tiers: Sequence[int], row: Any) -> None:
        self.now, self.oldest, self.mark, self.drawn, self.block, self.slot, *firsts = row
        self.sleeping = read_owner((ASLEEP, PACED), firsts[:2]).firsts
        self.turns = read_owner(tiers, firsts[2:])


def _note_new(context: TableContext, search: BoundedSearch, began: int | None, found: Sequence[_FoundByKeys]) -> None:
    """Advance the bound of new messages; ``began`` is the time, ns, unless a statement waited for a lock."""
    bound, last = context.reached.routed, found[-1]
    blocks = [one.block for one in found if one.block is not None]
    if not context.sql.is_bounded:
        if began is not None and second_of(began) < search.known:  # the server's clock was set back
            bound.reset()
            return
        end = search.known if began is None else max(search.known, second_of(began - WRITTEN_WITHIN))
        bound.found_nothing(search, min([end, *blocks]), Snapshot(last.now))
    elif last.drawn is not None and last.drawn + 1 < search.known:  # the numbers were set back
        bound.reset()
    elif last.drawn is not None:
        block = min([(last.drawn + 1) >> BLOCK_BITS, *blocks])  # later messages draw greater numbers
        bound.found_nothing(search, block << BLOCK_BITS, Snapshot(last.now, last.oldest, last.mark))


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
def _looking(context: TableContext, known: int) -> sa.Select[*tuple[Any, ...]]:
    rows, sql, null = context.rows, context.sql, sa.null()
    block, slot = sql.block_of(rows), leased_keys.since()
    its = [is_unrouted(context), of_any_key(context)]
    seen: list[sa.ColumnElement[Any]] = [null, null, null]
    leased: Any = null
    if sql.is_bounded:
        its.append(block < sa.literal_column(str(CHANGED_BLOCK)))
        seen = [*sql.seen_by(sa.bindparam("marks", type_=sa.Boolean), rows), last_drawn(rows)]
    elif context.options.limit is not None:
        leased = sa.select(slot).select_from(rows).with_hint(rows, index_of(rows, "leased")).order_by(slot).limit(1)
        leased = leased.where(slot >= sa.bindparam("slot", type_=sa.BigInteger)).scalar_subquery()
    new = sql.by_index(sa.select(block).select_from(rows), rows, "unrouted").where(*its).order_by(block).limit(1)
    columns = [
        *seen,
        new.scalar_subquery(),
        leased,
        *(first_awake(context, state) for state in (ASLEEP, PACED)),
        *turns_of_known(context, known),
        *others_in_turn(context, known),
    ]
    named = (column.label(f"column_{place}") for place, column in enumerate(columns))
    return sa.select(context.backend.now_sql().label("now"), *named)
