"""Positions and ordinals: where a position stands counted in messages, and which position a count leads to."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.ledgers import ledger_from
from waterclock.topics.row_groups import row_of
from waterclock.topics.sealed_ledger import SealedLedger
from waterclock.topics.storage import Storage


class Place(NamedTuple):
    """A position at which a message stands or will stand next, and that message's number in the topic."""

    position: Position
    ordinal: int


def place_of(storage: Storage, position: Position) -> Place:
    """Find the first message that is left at or after a position; the topic's head where there is none.

    Raises
    ------
    UnavailableError
        Where the position is in a sealed ledger whose file cannot be read.
    """
    with storage.backend.snapshot() as connection:
        row = ledger_from(storage, connection, position.ledger)
        counter = Counter.of_row(storage.row(connection))
        if row is None:
            if position >= counter.position or counter.entries == 0:
                return Place(counter.position, counter.ordinal)
            start = max(position, Position(counter.ledger, 0, 0))
            return _place_in_rows(storage, connection, start) or Place(counter.position, counter.ordinal)
        start = max(position, Position(row["ledger"], 0, 0))
        if start[1:] == (0, 0):
            return Place(start, row["first_ordinal"])
        if row["state"] != "sealed":
            place = _place_in_rows(storage, connection, start)
            return place or Place(Position(start.ledger + 1, 0, 0), row["first_ordinal"] + row["messages"])
    return _place_in_file(storage, row, start)


def position_of(storage: Storage, ordinal: int) -> Position:
    """Find the position of a message by its number in the topic; the topic's head where there is none.

    Raises
    ------
    UnavailableError
        Where it is in a sealed ledger whose file cannot be read.
    """
    with storage.backend.snapshot() as connection:
        counter = Counter.of_row(storage.row(connection))
        if ordinal >= counter.ordinal:
            return counter.position
        row = connection.execute(_ledger_holding(storage, ordinal)).mappings().one_or_none()
        if row is not None and ordinal >= row["first_ordinal"] + row["messages"]:
            row = None  # it is in the open one
        if row is None or row["state"] != "sealed":
            return _position_in_rows(storage, connection, counter.ledger if row is None else row["ledger"], ordinal)
    return _position_in_file(storage, row, ordinal)


def entry_boundary(storage: Storage, start: Position, messages: int) -> Position:
    """Give the end of the last whole entry within ``messages`` from ``start``; of the first, where that holds more.

    Raises
    ------
    UnavailableError
        Where that is in a sealed ledger whose file cannot be read.
    """
    first = place_of(storage, start)
    last = position_of(storage, first.ordinal + messages)
    boundary = Position(last.ledger, last.entry, 0)
    return boundary if boundary > first.position else Position(last.ledger, last.entry + 1, 0)


def _place_in_rows(storage: Storage, connection: sa.Connection, position: Position) -> Place | None:
    statement = (
        sa.select(entries.c.entry, entries.c.first_ordinal, entries.c.messages)
        .where(
            entries.c.topic_id == storage.topic_id,
            entries.c.ledger == position.ledger,
            entries.c.entry >= position.entry,
        )
        .order_by(entries.c.entry)
        .limit(2)
    )
    for row in connection.execute(statement):
        index = position.index if row.entry == position.entry else 0
        if index < row.messages:
            return Place(Position(position.ledger, row.entry, index), row.first_ordinal + index)
    return None


def _place_in_file(storage: Storage, row: sa.RowMapping, position: Position) -> Place:
    file = SealedLedger(storage.files, row)
    groups = file.groups
    number = max(bisect_right(groups, position[1:], key=lambda group: (group.entry, group.index)) - 1, 0)
    first = row["first_ordinal"] + sum(group.messages for group in groups[:number])
    table = file.read(number, ["entry", "index"])
    at = row_of(table["entry"].to_numpy(), table["index"].to_numpy(), position[1:])
    if at < table.num_rows:
        return Place(Position(row["ledger"], table["entry"][at].as_py(), table["index"][at].as_py()), first + at)
    if number + 1 < len(groups):
        return Place(Position(row["ledger"], groups[number + 1].entry, groups[number + 1].index), first + at)
    return Place(Position(row["ledger"] + 1, 0, 0), first + at)


def _ledger_holding(storage: Storage, ordinal: int) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(ledgers)
        .where(
            ledgers.c.topic_id == storage.topic_id,
            ledgers.c.first_ordinal <= ordinal,
            ledgers.c.messages > 0,
        )
        .order_by(ledgers.c.first_ordinal.desc())
        .limit(1)
    )


def _position_in_rows(storage: Storage, connection: sa.Connection, ledger: int, ordinal: int) -> Position:
    statement = (
        sa.select(entries.c.entry, entries.c.first_ordinal)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger, entries.c.first_ordinal <= ordinal)
        .order_by(entries.c.entry.desc())
        .limit(1)
    )
    row = connection.execute(statement).one()
    return Position(ledger, row.entry, ordinal - row.first_ordinal)


def _position_in_file(storage: Storage, row: sa.RowMapping, ordinal: int) -> Position:
    file = SealedLedger(storage.files, row)
    starts = list(accumulate((group.messages for group in file.groups), initial=0))
    at = ordinal - row["first_ordinal"]
    number = bisect_right(starts, at) - 1
    table = file.read(number, ["entry", "index"])
    at -= starts[number]
    return Position(row["ledger"], table["entry"][at].as_py(), table["index"][at].as_py())
