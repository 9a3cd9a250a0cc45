"""Finds unrouted (new) messages on PostgreSQL, in tables whose keys take turns, without reading dead index entries.

The index is ordered by blocks of ``seq``, the number of a row, and within a block by key. A search begins at a lower
bound. So the search skips the entries of earlier messages, which remain while a transaction holds an old snapshot. If
many messages of one key wait, the search finds the other keys without reading all these messages.

A routed message becomes unrouted again if a statement, such as a nack, may make it due earlier. A trigger then draws
another number from the sequence of ``seq`` and keeps it in ``routed``, so the message stands where a new one would.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from waterclock.tables.databases.message_keys import level_of
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import MESSAGE_KEY
from waterclock.time import MAX_NS

BLOCK_BITS = 10
"""So many seqs together (2^10) that a million messages of one key are passed in a thousand steps, and so few that
stepping over their entries takes less time than a claim's other searches."""

CHANGED = 2
"""The value of ``routed`` of a message that was changed so after it was routed, if a consumer has it. Otherwise the
value is greater: the number that was drawn."""
CHANGED_BLOCK = 1 << 52  # the place of messages with `CHANGED`, behind every number

BLOCK_SQL = (
    f"CASE WHEN routed = {CHANGED} THEN {CHANGED_BLOCK}"
    f" ELSE CASE WHEN routed > {CHANGED} THEN routed ELSE seq END >> {BLOCK_BITS} END"
)
"""The first column of the index, for DDL."""

SEQS_SQL = "pg_get_serial_sequence(CAST(TG_RELID::regclass AS text), 'seq')"
"""The sequence of the numbers, for a trigger."""
DRAWN_SQL = f"""CASE WHEN NEW.claim_id IS NULL AND has_sequence_privilege(seqs, 'USAGE')
            THEN GREATEST({CHANGED + 1}, nextval(CAST(seqs AS regclass))) ELSE {CHANGED} END"""
"""The value of ``routed`` of a message that may be due earlier than before, for a trigger.

If the table was given to another owner, the owner of the trigger's function may not draw numbers."""

_LAST_DRAWN = """(
    SELECT CASE WHEN has_sequence_privilege(seqs, 'SELECT') THEN COALESCE(pg_sequence_last_value(seqs), 0) END
    FROM CAST(pg_get_serial_sequence('"%s"', 'seq') AS regclass) AS seqs)"""

_Place = tuple[sa.ColumnElement[Any], ...]


def block_of(rows: sa.FromClause) -> sa.ColumnElement[int]:
    """Return the first column of the index."""
    routed, changed = rows.c.routed, sa.literal_column(str(CHANGED))
    number = Grouping(sa.case((routed > changed, routed), else_=rows.c.seq))
    block = number.op(">>", return_type=sa.BigInteger())(sa.literal_column(str(BLOCK_BITS)))
    return Grouping(sa.case((routed == changed, sa.literal_column(str(CHANGED_BLOCK), sa.BigInteger)), else_=block))


def last_drawn(rows: sa.Table) -> sa.ColumnElement[int]:
    """Return the last number drawn, even if the transaction is in progress; NULL if the role may not see it.

    A transaction has an id before it draws a number: a trigger assigns it before an INSERT, and the lock of the row
    before an UPDATE fires its triggers.
    """
    return sa.literal_column(_LAST_DRAWN % rows.name, sa.BigInteger)  # the name needs no escapes


def _place(rows: sa.FromClause) -> _Place:
    return block_of(rows), rows.c[MESSAGE_KEY].concat(sa.literal_column("''")), level_of(rows)


def is_behind(rows: sa.FromClause, last: _Place) -> sa.ColumnElement[bool]:
    """Return the condition that a message stands in the index behind a place: the first column, key, level."""
    return sa.tuple_(*_place(rows)) > sa.tuple_(*last)


def next_places(rows: sa.Table, last: _Place, *, of_keys: bool = False) -> sa.Select[*tuple[Any, ...]]:
    """Return the first message of each of the next keys and priorities behind a place, at most ``count``.

    Each step looks the next one up, however many messages it passes. If ``of_keys``, it passes the other priorities of
    a key.
    """

    def first_behind(last: _Place, nth: sa.ColumnElement[int]) -> sa.Select[*tuple[Any, ...]]:
        one = rows.alias()
        block, key, level = place = _place(one)
        unrouted = not_acked(one), one.c.routed != sa.literal_column("1")
        named = block.label("block"), key.label("key"), level.label("level"), one.c.priority, nth.label("nth")
        return (
            sa.select(*named, one.c.time_next, one.c.seq, one.c.claim_id)
            .where(*unrouted, is_behind(one, last))
            .order_by(*place, one.c.time_next)
            .limit(sa.literal_column("1"))
            .correlate_except(one)
        )

    base = first_behind(last, sa.literal_column("1", sa.Integer)).subquery()
    found = sa.select(base).cte("found", recursive=True)
    level = sa.literal_column(str(MAX_NS), sa.BigInteger) if of_keys else found.c.level
    last = found.c.block, found.c.key, level
    following = first_behind(last, found.c.nth + sa.literal_column("1")).lateral("following")
    more = sa.select(following).select_from(found.join(following, sa.true()))
    found = found.union_all(more.where(found.c.nth < sa.bindparam("count", type_=sa.Integer)))
    return sa.select(found)
