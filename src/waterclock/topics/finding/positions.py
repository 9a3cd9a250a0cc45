"""Converts a position into the ordinal of its message, and back."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import Damage, located
from waterclock.topics.catalogue.ledgers import ledger_from
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import KEPT
from waterclock.topics.format.row_groups import RowGroup, row_of, starts_of
from waterclock.topics.model.counter import Counter
from waterclock.topics.reading.contiguity import ledgers_gap_before
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError


class Place(NamedTuple):
    """A position, and the number in the topic of the message that is or will be there."""

    position: Position
    ordinal: int


def beginning(storage: Storage) -> Place:
    """Return the first remaining place of the topic; earlier ledgers were deleted on purpose."""
    with storage.backend.snapshot() as connection:
        row = storage.row(connection)
    return Place(Position(row["first_ledger"], 0, 0), row["first_ordinal"])


def place_of(storage: Storage, position: Position, damage: Damage | None = None) -> Place:
    """Find the first remaining message at or after a position; the topic's head if all are earlier.

    If a ledger before it is missing, return the beginning of that ledger, so that the reader reports the gap.

    Parameters
    ----------
    damage
        The policy for unreadable parts; if they may be skipped, the place is after them. None: an error.

    Raises
    ------
    UnavailableError, DamagedError
        If the position is in a sealed ledger whose file cannot be read.
    """
    with storage.backend.snapshot() as connection:
        row = ledger_from(storage, connection, position.ledger)
        hole = _hole(storage, connection, position, row)
        if hole is not None:
            return hole
        while row is not None and row["state"] == "lost":
            row = ledger_from(storage, connection, row["ledger"] + 1)
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
    return _place_in_file(storage, row, start, damage or Damage(storage.name))


def _hole(storage: Storage, connection: sa.Connection, position: Position, row: sa.RowMapping | None) -> Place | None:
    """Return the beginning of a gap between a position and the next existing ledger; None without a gap."""
    topic = storage.row(connection)
    ledger = max(position.ledger, topic["first_ledger"])
    if ledger >= (topic["ledger"] if row is None else row["ledger"]):
        return None
    end = sa.select(ledgers.c.first_ordinal + ledgers.c.messages).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < ledger
    )
    before = connection.execute(end.order_by(ledgers.c.ledger.desc()).limit(1)).scalar()
    return Place(Position(ledger, 0, 0), topic["first_ordinal"] if before is None else before)


def position_of(storage: Storage, ordinal: int, damage: Damage | None = None) -> Position:
    """Find the position of a message by its number in the topic; the topic's head if the number is not used yet.

    If the message was deleted or is recorded as lost, return the next remaining place.

    Raises
    ------
    UnavailableError, DamagedError
        If it is in a sealed ledger whose file cannot be read, or if its ledger is missing; see `place_of`.
    """
    damage = damage or Damage(storage.name)
    with storage.backend.snapshot() as connection:
        counter = Counter.of_row(storage.row(connection))
        if ordinal >= counter.ordinal:
            return counter.position
        row = connection.execute(_ledger_holding(storage, ordinal)).mappings().one_or_none()
        if row is not None and ordinal >= row["first_ordinal"] + row["messages"]:
            row = None  # it is in the open one, or in a ledger that is missing
        if row is None and ordinal < counter.ordinal - counter.messages:
            return _behind_missing(storage, connection, ordinal, damage)
        if row is not None and row["state"] == "lost":
            return Position(row["ledger"] + 1, 0, 0)
        if row is None or row["state"] != "sealed":
            ledger = counter.ledger if row is None else row["ledger"]
            return _position_in_rows(storage, connection, ledger, ordinal, damage)
    return _position_in_file(storage, row, ordinal, damage)


def entry_boundary(storage: Storage, start: Position, messages: int, damage: Damage | None = None) -> Position:
    """Return the end of the last whole entry within ``messages`` from ``start``, at least that of the first entry.

    Raises
    ------
    UnavailableError, DamagedError
        If that is in a sealed ledger whose file cannot be read, or in a ledger that is missing; see `place_of`.
    """
    first = place_of(storage, start, damage)
    last = position_of(storage, first.ordinal + messages, damage)
    boundary = Position(last.ledger, last.entry, 0)
    return boundary if boundary > first.position else Position(last.ledger, last.entry + 1, 0)


def _place_in_rows(storage: Storage, connection: sa.Connection, position: Position) -> Place | None:
    statement = (
        sa.select(entries.c.entry, entries.c.first_ordinal, entries.c.messages)
        .where(
            entries.c.topic_id == storage.topic_id,
            entries.c.ledger == position.ledger,
            entries.c.entry >= position.entry,
            KEPT,
        )
        .order_by(entries.c.entry)
        .limit(2)
    )
    for row in connection.execute(statement):
        index = position.index if row.entry == position.entry else 0
        if index < row.messages:
            return Place(Position(position.ledger, row.entry, index), row.first_ordinal + index)
    return None


def _place_in_file(storage: Storage, row: sa.RowMapping, position: Position, damage: Damage) -> Place:
    end = Place(Position(row["ledger"] + 1, 0, 0), row["first_ordinal"] + row["messages"])
    try:
        file = SealedLedger(storage, row)
    except (DamagedError, LostFileError) as error:
        damage.meet(error, row["messages"])
        return end
    groups = file.groups
    if not groups:
        return end
    number = max(bisect_right(groups, position[1:], key=lambda group: (group.entry, group.index)) - 1, 0)
    starts = starts_of(groups, row["first_ordinal"])
    if position[1:] <= (groups[number].entry, groups[number].index):
        return _start_of(row, groups[number], starts[number])
    following = _start_of(row, groups[number + 1], starts[number + 1]) if number + 1 < len(groups) else end
    try:
        table = file.read(number, ["entry", "index"])
    except (DamagedError, LostFileError) as error:
        damage.meet(error, groups[number].messages)
        return following
    at = row_of(table["entry"].to_numpy(), table["index"].to_numpy(), position[1:])
    if at == table.num_rows:
        return following
    place = Position(row["ledger"], table["entry"][at].as_py(), table["index"][at].as_py())
    return Place(place, starts[number] + at)


def _start_of(row: sa.RowMapping, group: RowGroup, ordinal: int) -> Place:
    return Place(Position(row["ledger"], group.entry, group.index), ordinal)


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


def _behind_missing(storage: Storage, connection: sa.Connection, ordinal: int, damage: Damage) -> Position:
    """Return the beginning of the ledger that follows the one of a missing message."""
    topic = storage.row(connection)
    statement = sa.select(ledgers.c.ledger, ledgers.c.first_ordinal).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.first_ordinal > ordinal
    )
    row = connection.execute(statement.order_by(ledgers.c.first_ordinal).limit(1)).one_or_none()
    following, first = (topic["ledger"], topic["ordinal"] - topic["messages"]) if row is None else row
    if ordinal >= topic["first_ordinal"]:
        gap = ledgers_gap_before(storage, connection, following, first, topic)
        damage.meet(gap.error, gap.messages)
    return Position(following, 0, 0)


def _position_in_rows(
    storage: Storage, connection: sa.Connection, ledger: int, ordinal: int, damage: Damage
) -> Position:
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
    columns = (entries.c.entry, entries.c.first_ordinal, entries.c.messages)
    before = sa.select(*columns).where(*here, entries.c.first_ordinal <= ordinal).order_by(entries.c.entry.desc())
    row = connection.execute(before.limit(1)).one_or_none()
    if row is not None and ordinal < row.first_ordinal + row.messages:
        return Position(ledger, row.entry, ordinal - row.first_ordinal)
    missing = DamagedError(f"the entry of ledger {ledger} that holds message {ordinal} is missing")
    damage.meet(located(missing, storage.name, ledger=ledger), 0)
    after = sa.select(entries.c.entry).where(*here, entries.c.first_ordinal > ordinal).order_by(entries.c.entry)
    following = connection.execute(after.limit(1)).scalar()
    return Position(ledger + 1, 0, 0) if following is None else Position(ledger, following, 0)


def _position_in_file(storage: Storage, row: sa.RowMapping, ordinal: int, damage: Damage) -> Position:
    end = Position(row["ledger"] + 1, 0, 0)
    try:
        file = SealedLedger(storage, row)
    except (DamagedError, LostFileError) as error:
        damage.meet(error, row["messages"])
        return end
    starts = starts_of(file.groups, row["first_ordinal"])
    if not starts:
        return end
    number = max(bisect_right(starts, ordinal) - 1, 0)
    at = ordinal - starts[number]
    group = file.groups[number]
    following = _start_of(row, file.groups[number + 1], 0).position if number + 1 < len(starts) else end
    if at >= group.messages:
        return following  # the messages in between are lost
    if at <= 0:
        return Position(row["ledger"], group.entry, group.index)
    try:
        table = file.read(number, ["entry", "index"])
    except (DamagedError, LostFileError) as error:
        damage.meet(error, group.messages)
        return following
    return Position(row["ledger"], table["entry"][at].as_py(), table["index"][at].as_py())
