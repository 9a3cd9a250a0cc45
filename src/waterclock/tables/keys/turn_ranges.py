"""Searches rows of keys by constant bounds, because MariaDB begins at a bound only if it is a constant.

A search for turns is one range of the index for each level with a bound, and one for the levels between two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.catalogue.context import TableContext

MOST_KNOWN = 8
"""Levels that have bounds: each is a range of a search, and each number of them a statement."""


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


def values_of(lows: Mapping[int, int]) -> dict[str, int]:
    """Return the parameters of searches, from the turns at which those of each level begin."""
    values: dict[str, int] = {}
    for place, level in enumerate(sorted(lows)):
        values |= {f"level_{place}": level, f"low_{place}": lows[level]}
    return values


def searched(context: TableContext, known: int) -> list[sa.ColumnElement[bool]]:
    """Return the conditions, in the order of levels, each of one search for turns, with ``known`` bounds.

    Only MariaDB searches several ranges of an index in order.
    """
    others = of_others(known)
    ranges = [others[0], *chain.from_iterable(zip(of_known(known), others[1:], strict=True))]
    return ranges if context.sql.is_bounded else [sa.or_(*ranges)]


def of_known(known: int) -> list[sa.ColumnElement[bool]]:
    """Return the range of each level with a bound, from that on."""
    its = message_keys.c
    lows = [sa.bindparam(f"low_{place}", type_=sa.BigInteger) for place in range(known)]
    return [(its.level == level) & (its.turn >= low) for level, low in zip(_levels(known), lows, strict=True)]


def of_others(known: int) -> list[sa.ColumnElement[bool]]:
    """Return the ranges of levels below, between and above those with a bound."""
    level, levels = message_keys.c.level, _levels(known)
    if not levels:
        return [sa.true()]
    between = [(level > one) & (level < another) for one, another in pairwise(levels)]
    return [level < levels[0], *between, level > levels[-1]]


def _levels(known: int) -> list[sa.BindParameter[int]]:
    return [sa.bindparam(f"level_{place}", type_=sa.BigInteger) for place in range(known)]
