"""Finds unrouted (new) messages on PostgreSQL, in tables whose keys take turns, without reading dead index entries.

The index is ordered by blocks of ``seq``, the number of a row, and within a block by key. A search begins at a lower
bound. So the search skips the entries of earlier messages, which remain while a transaction holds an old snapshot. If
many messages of one key wait, the search finds the other keys without reading all these messages.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from waterclock.tables.model.schema import MESSAGE_KEY, not_acked

BLOCK_BITS = 10
"""So many seqs together (2^10) that a million messages of one key are passed in a thousand steps, and so few that
stepping over their entries takes less time than a claim's other searches."""

CHANGED = 2  # the value of ``routed`` of a message that was routed, and that a statement moved forward since
CHANGED_BLOCK = 1 << 52  # the place of all these, behind every seq

BLOCK_SQL = f"CASE WHEN routed = {CHANGED} THEN {CHANGED_BLOCK} ELSE seq >> {BLOCK_BITS} END"
"""The first column of the index, for DDL."""

_Place = tuple[sa.ColumnElement[Any], ...]


def block_of(rows: sa.FromClause) -> sa.ColumnElement[int]:
    """Return the first column of the index."""
    seqs = rows.c.seq.op(">>", return_type=sa.BigInteger())(sa.literal_column(str(BLOCK_BITS)))
    changed = rows.c.routed == sa.literal_column(str(CHANGED))
    block = sa.literal_column(str(CHANGED_BLOCK), sa.BigInteger)
    return Grouping(sa.case((changed, block), else_=seqs))


def _place(rows: sa.FromClause) -> _Place:
    return block_of(rows), rows.c[MESSAGE_KEY].concat(sa.literal_column("''")), rows.c.priority


def is_behind(rows: sa.FromClause, last: _Place) -> sa.ColumnElement[bool]:
    """Return the condition that a message stands in the index behind a place: the first column, key, priority."""
    return sa.tuple_(*_place(rows)) > sa.tuple_(*last)


def next_places(rows: sa.Table, last: _Place) -> sa.Select[*tuple[Any, ...]]:
    """Return the first message of each of the next keys and priorities behind a place, at most ``count``.

    Each step looks the next one up, however many messages it passes.
    """

    def first_behind(last: _Place, nth: sa.ColumnElement[int]) -> sa.Select[*tuple[Any, ...]]:
        one = rows.alias()
        block, key, priority = place = _place(one)
        unrouted = not_acked(one), one.c.routed != sa.literal_column("1")
        named = block.label("block"), key.label("key"), priority, nth.label("nth")
        return (
            sa.select(*named, one.c.time_next, one.c.seq, one.c.claim_id)
            .where(*unrouted, is_behind(one, last))
            .order_by(*place, one.c.time_next)
            .limit(sa.literal_column("1"))
            .correlate_except(one)
        )

    base = first_behind(last, sa.literal_column("1", sa.Integer)).subquery()
    found = sa.select(base).cte("found", recursive=True)
    following = first_behind(
        (found.c.block, found.c.key, found.c.priority), found.c.nth + sa.literal_column("1")
    ).lateral("following")
    more = sa.select(following).select_from(found.join(following, sa.true()))
    found = found.union_all(more.where(found.c.nth < sa.bindparam("count", type_=sa.Integer)))
    return sa.select(found)
