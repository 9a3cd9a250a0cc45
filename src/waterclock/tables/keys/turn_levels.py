"""Searches the rows of keys without reading dead index entries.

With each turn, a row moves to another place in the index of turns, and with each pause to another place in the index of
sleeping rows. The entries of earlier places remain while a transaction holds an old snapshot.

A turn is stored as a time. Neither a turn nor the end of a pause is in the past when it is written, so nothing new
appears below the current time. Searches therefore begin at lower bounds: one for the turns of each level, and two for
the times at which sleeping rows wake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.postgresql.unrouted_keys import BLOCK_BITS
from waterclock.tables.keys import turn_ranges
from waterclock.tables.model.claims.bounds import GroupSearch
from waterclock.time import MIN_NS

ASLEEP, HAS_TURN, PACED, ENDED = 0, 1, 2, 3  # the values of ``is_due``


class Lows(NamedTuple):
    """The starts of all searches of a table."""

    values: dict[str, Any]  # the parameters of the statements
    known: int = 0  # the number of levels with a bound


def lows_of(context: TableContext) -> Lows:
    """Return the starts of all searches; without parameters if searches have no bounds."""
    reached = context.reached
    if context.sql.one_writer:
        return Lows({})
    turns, sleeping = (
        {one: bound.value for one, bound in bounds.of_unassigned().items()}
        for bounds in (reached.groups, reached.sleeping)
    )
    return starts(context, reached.routed.value, turns, sleeping)


def starts(context: TableContext, new: int, turns: Mapping[int, int], sleeping: Mapping[int, int]) -> Lows:
    """Return the starts of searches at these bounds: of new messages, of turns by level, and of sleeping rows."""
    if context.sql.is_bounded:
        new >>= BLOCK_BITS
    elif not context.backend.has_own_clock:
        turns, sleeping = {}, dict.fromkeys(sleeping, MIN_NS)
    states = {"asleep": sleeping[ASLEEP], "paced": sleeping[PACED]}
    return Lows({"start": new, **states, **turn_ranges.values_of(turns)}, len(turns))


def lows_of_search(search: GroupSearch) -> dict[int, int]:
    """Return the start of each search by level, or by the state of sleeping rows."""
    return dict(zip(search.priorities, (one.low for one in search.unassigned), strict=True))


def low_of(context: TableContext, level: int) -> int:
    """Return the turn from which the rows of a level are searched."""
    bound = context.reached.groups.of_unassigned().get(level)
    return MIN_NS if bound is None else bound.value


def has_turn(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a row waits for its turn."""
    return (message_keys.c.table_id == context.table_id) & (message_keys.c.is_due == sa.literal_column(str(HAS_TURN)))


def has_ended(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a row's key had no messages at its ``due_at``."""
    return (message_keys.c.table_id == context.table_id) & (message_keys.c.is_due == sa.literal_column(str(ENDED)))


def some_in_turn(context: TableContext, known: int) -> sa.ColumnElement[bool]:
    """Return whether a row waits for its turn; ``known`` is from `lows_of`."""
    level, turn = message_keys.c.level, message_keys.c.turn
    ranges = turn_ranges.searched(context, known)
    found = [sa.select(turn).where(has_turn(context), one) for one in ranges]
    return sa.or_(*(turn_ranges.first_of(context, one, level, turn, index="turn").is_not(None) for one in found))


def is_in(state: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row sleeps, `ASLEEP` or `PACED`, with that of the index, which SQLite needs."""
    is_due = message_keys.c.is_due
    return (is_due == sa.literal_column(str(state))) & (is_due != sa.literal_column(str(HAS_TURN)))


def sleeps(context: TableContext, state: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row sleeps, `ASLEEP` or `PACED`, until a time from the bound on."""
    low = sa.bindparam("asleep" if state == ASLEEP else "paced", type_=sa.BigInteger)
    return is_in(state) if context.sql.one_writer else is_in(state) & (message_keys.c.due_at >= low)


def first_awake(context: TableContext, state: int) -> sa.ScalarSelect[int]:
    """Return the first time, up to now, until which a row sleeps.

    A key that sleeps again and again until the same lease ends leaves many entries behind that time.
    """
    has_ended = message_keys.c.due_at <= context.backend.now_sql()
    its = message_keys.c.table_id == context.table_id, sleeps(context, state), has_ended
    found = sa.select(message_keys.c.due_at).where(*its)
    return turn_ranges.first_of(context, found, message_keys.c.due_at, index="due")
