"""Searches the rows of keys without reading dead index entries.

Rows wait for their turns in tiers, and a claim serves a lower tier first. With `fair_by`, all rows are in one tier, so
keys take turns whatever their priorities. Otherwise each priority has a tier of its own.

With each turn, a row moves to another place in the index of turns, and with each pause to another place in the index of
sleeping rows. The entries of earlier places remain while a transaction holds an old snapshot.

A turn is stored as a time. Neither a turn nor the end of a pause is in the past when it is written, so nothing new
appears below the current time. Searches therefore begin at lower bounds: one for the turns of each tier, and two for
the times at which sleeping rows wake. A search for turns is one range of the index for each tier with a bound, and one
for the tiers between two of them, because MariaDB begins at a bound only if it is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.postgresql.unrouted_keys import BLOCK_BITS
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.time import MIN_NS

ASLEEP, HAS_TURN, PACED, ENDED, FOLLOWS = 0, 1, 2, 3, 4  # the values of ``is_due``
_ONLY = 0  # the tier of all rows in a table with ``fair_by``
MOST_KNOWN = 8
"""Tiers that have bounds: each is a range of a search, and each number of them a statement."""


def tier_of(context: TableContext, level: int) -> int:
    """Return the tier in which a row of this level, the negated priority, waits for its turn."""
    return level if context.options.fair_by is None else _ONLY


class Lows(NamedTuple):
    """The starts of all searches of a table."""

    values: dict[str, Any]  # the parameters of the statements
    known: int = 0  # the number of tiers with a bound


def lows_of(context: TableContext) -> Lows:
    """Return the starts of all searches; without parameters if searches have no bounds."""
    reached = context.reached
    if context.sql.one_writer:
        return Lows({})
    return starts(context, reached.routed.value, reached.groups.lows(), reached.sleeping.lows())


def starts(context: TableContext, new: int, turns: Mapping[int, int], sleeping: Mapping[int, int]) -> Lows:
    """Return the starts of searches at these bounds: of new messages, of turns by tier, and of sleeping rows."""
    if context.sql.is_bounded:
        new >>= BLOCK_BITS
    elif not context.backend.has_own_clock:
        turns, sleeping = {}, dict.fromkeys(sleeping, MIN_NS)
    values = {"start": new, "asleep": sleeping[ASLEEP], "paced": sleeping[PACED]}
    for place, tier in enumerate(sorted(turns)):
        values |= {f"tier_{place}": tier, f"low_{place}": turns[tier]}
    return Lows(values, len(turns))


def has_turn(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a row waits for its turn."""
    return (message_keys.c.table_id == context.table_id) & (message_keys.c.is_due == sa.literal_column(str(HAS_TURN)))


def has_ended(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a row's key had no messages at its ``due_at``."""
    return (message_keys.c.table_id == context.table_id) & (message_keys.c.is_due == sa.literal_column(str(ENDED)))


def by_index(name: str) -> str:
    """Return the hint that names an index. Without it, the server reads all keys of a small table, and sorts them."""
    return f"FORCE INDEX (waterclock_message_keys_{name}_idx)"


def first_of(
    context: TableContext, found: sa.Select[int], *order: sa.ColumnElement[int], index: str
) -> sa.ScalarSelect[int]:
    """Return the value of the first row of a search in the order of an index."""
    if context.sql.begins_at_constants:
        found = found.where(context.sql.needs_row(message_keys.c.had)).with_hint(message_keys, by_index(index))
    return found.order_by(*order).limit(1).scalar_subquery()


def searched(context: TableContext, known: int, *, others: bool = True) -> list[sa.ColumnElement[bool]]:
    """Return the conditions, in the order of tiers, each of one search for turns, with ``known`` bounds.

    Only MariaDB searches several ranges of an index in order. A search that goes on there from the range of one tier
    to that of the next passes the dead entries between them; if not ``others``, only tiers with a bound have turns.
    """
    rest = _of_others(known)
    ranges = [rest[0], *chain.from_iterable(zip(of_known(known), rest[1:], strict=True))]
    if context.sql.is_bounded:
        return ranges
    return [sa.or_(*(ranges if others or known in (0, MOST_KNOWN) else of_known(known)))]


def of_known(known: int) -> list[sa.ColumnElement[bool]]:
    """Return the range of each tier with a bound, from that on."""
    its = message_keys.c
    lows = [sa.bindparam(f"low_{place}", type_=sa.BigInteger) for place in range(known)]
    return [(its.tier == tier) & (its.turn >= low) for tier, low in zip(_tiers(known), lows, strict=True)]


def others_in_turn(context: TableContext, known: int) -> list[sa.ScalarSelect[int]]:
    """Return the nearest tier with turns below, between and above those with a bound.

    On MariaDB, a search that finds nothing goes on through dead entries. So it goes away from the turns of these.
    """
    tier, turn = message_keys.c.tier, message_keys.c.turn
    searches: list[sa.ScalarSelect[int]] = []
    for place, one in enumerate(_of_others(known)):
        order = (tier.desc(), turn.desc()) if place == 0 < known else (tier, turn)
        searches.append(first_of(context, sa.select(tier).where(has_turn(context), one), *order, index="turn"))
    return searches


def learn_tiers(context: TableContext, tiers: Iterable[int]) -> None:
    """Begin bounds for tiers."""
    for tier in tiers:
        context.reached.groups.learn(UNASSIGNED, tier, most=MOST_KNOWN if context.sql.begins_at_constants else None)


def _of_others(known: int) -> list[sa.ColumnElement[bool]]:
    """Return the ranges of tiers below, between and above those with a bound."""
    tier, tiers = message_keys.c.tier, _tiers(known)
    if not tiers:
        return [sa.true()]
    between = [(tier > one) & (tier < another) for one, another in pairwise(tiers)]
    return [tier < tiers[0], *between, tier > tiers[-1]]


def _tiers(known: int) -> list[sa.BindParameter[int]]:
    return [sa.bindparam(f"tier_{place}", type_=sa.BigInteger) for place in range(known)]


def some_in_turn(context: TableContext, known: int) -> sa.ColumnElement[bool]:
    """Return whether a row waits for its turn; ``known`` is from `lows_of`."""
    found = *turns_of_known(context, known), *others_in_turn(context, known)
    return sa.or_(*(one.is_not(None) for one in found))


def turns_of_known(context: TableContext, known: int) -> list[sa.ScalarSelect[int]]:
    """Return the first turn of each tier with a bound."""
    tier, turn = message_keys.c.tier, message_keys.c.turn
    found = [sa.select(turn).where(has_turn(context), one) for one in of_known(known)]
    return [first_of(context, one, tier, turn, index="turn") for one in found]


def is_in(state: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row sleeps, `ASLEEP` or `PACED`, with that of the index, which SQLite needs."""
    is_due = message_keys.c.is_due
    return (is_due == sa.literal_column(str(state))) & (is_due != sa.literal_column(str(HAS_TURN)))


def sleeps(context: TableContext, state: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row sleeps, `ASLEEP` or `PACED`, until a time from the bound on."""
    low = sa.bindparam("asleep" if state == ASLEEP else "paced", type_=sa.BigInteger)
    from_low = (message_keys.c.is_due == sa.literal_column(str(state))) & (message_keys.c.due_at >= low)
    return is_in(state) if context.sql.one_writer else from_low


def first_awake(context: TableContext, state: int) -> sa.ScalarSelect[int]:
    """Return the first time, up to now, until which a row sleeps.

    A key that sleeps again and again until the same lease ends leaves many entries behind that time.
    """
    has_ended = message_keys.c.due_at <= context.backend.now_sql()
    its = message_keys.c.table_id == context.table_id, sleeps(context, state), has_ended
    found = sa.select(message_keys.c.due_at).where(*its)
    return first_of(context, found, message_keys.c.due_at, index="due")
