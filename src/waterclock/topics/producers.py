"""Producers that number their messages: a repeated append is recognised, an instance that was replaced is fenced."""

from __future__ import annotations

import json
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.topic_catalogue import producers
from waterclock.errors import InvalidArgumentError, ProducerFencedError
from waterclock.message import Position
from waterclock.topics.names import check_name
from waterclock.topics.storage import Storage

REMEMBERED = 5
"""Appends of a producer whose positions are remembered; older repeats are recognised but have no position."""


class ProducerAppend(NamedTuple):
    """Who appends, and which of its messages.

    Attributes
    ----------
    name
        The producer's name in its topic.
    first, last
        Numbers of the first and the last message of the append.
    epoch
        Which instance of the producer it is; None: any.
    """

    name: str
    first: int
    last: int
    epoch: int | None = None


class Repeat(NamedTuple):
    """An append that the topic holds already; ``first`` is None where its position is forgotten."""

    first: Position | None


def numbered(producer: str | None, sequence: int | None, epoch: int | None, messages: int) -> ProducerAppend | None:
    """Check what a caller says about who appends; None where nobody is named."""
    if (producer is None) != (sequence is None):
        raise InvalidArgumentError(f"producer: {producer!r} and sequence: {sequence!r} only mean something together")
    if producer is None or sequence is None:
        return None
    return ProducerAppend(check_name(producer), sequence, sequence + messages - 1, epoch)


def find_repeat(storage: Storage, connection: sa.Connection, append: ProducerAppend) -> Repeat | None:
    """Look whether the topic holds an append already. The transaction holds the topic's lock.

    Raises
    ------
    ProducerFencedError
        Where a newer instance of the producer has taken over.
    InvalidArgumentError
        Where some but not exactly the messages of an earlier append are repeated.
    """
    row = _row(storage, connection, append.name)
    if row is None:
        return None
    if append.epoch is not None and append.epoch < row["epoch"]:
        raise ProducerFencedError(
            f"producer {append.name!r} of topic {storage.name!r}: this instance has epoch {append.epoch}, and epoch"
            f" {row['epoch']} has taken over; stop this one"
        )
    if row["last_sequence"] is None or append.first > row["last_sequence"]:
        return None
    recent = json.loads(row["recent"])
    for first, last, ledger, entry in recent:
        if (first, last) == (append.first, append.last):
            return Repeat(Position(ledger, entry, 0))
    if append.last < recent[0][0]:
        return Repeat(None)
    raise InvalidArgumentError(
        f"sequence: producer {append.name!r} has appended up to {row['last_sequence']}; {append.first} to {append.last}"
        " overlaps that without being one of its appends; repeat an append whole, or go on after the last"
    )


def remember(storage: Storage, connection: sa.Connection, append: ProducerAppend, position: Position) -> None:
    """Note an append that is being written, in its transaction."""
    row = _row(storage, connection, append.name)
    recent: list[list[int]] = [] if row is None else json.loads(row["recent"])
    recent = [*recent, [append.first, append.last, position.ledger, position.entry]][-REMEMBERED:]
    values = {"last_sequence": append.last, "recent": json.dumps(recent)}
    if row is None:
        key = {"topic_id": storage.topic_id, "name": append.name, "epoch": append.epoch or 0}
        connection.execute(sa.insert(producers), key | values)
    else:
        connection.execute(sa.update(producers).where(*_key(storage, append.name)).values(values))


def take_over(storage: Storage, name: str) -> tuple[int, int | None]:
    """Start a new instance of a producer: fence all earlier ones; give its epoch and its last sequence number."""

    def work(connection: sa.Connection) -> tuple[int, int | None]:
        storage.lock(connection)
        row = _row(storage, connection, name)
        if row is None:
            key = {"topic_id": storage.topic_id, "name": name, "epoch": 1, "recent": "[]"}
            connection.execute(sa.insert(producers), key)
            return 1, None
        epoch = row["epoch"] + 1
        connection.execute(sa.update(producers).where(*_key(storage, name)).values(epoch=epoch))
        return epoch, row["last_sequence"]

    return storage.backend.transact(work)


def newest_append(storage: Storage, name: str) -> Position | None:
    """Give the position of a producer's newest append; None where it has none, or has forgotten it."""
    with storage.backend.snapshot() as connection:
        row = _row(storage, connection, name)
    recent = json.loads(row["recent"]) if row is not None else []
    return Position(recent[-1][2], recent[-1][3], 0) if recent else None


def last_sequence(storage: Storage, name: str) -> int | None:
    """Give the number of the last message that a producer has appended; None where there is none."""
    with storage.backend.snapshot() as connection:
        row = _row(storage, connection, check_name(name))
    return None if row is None else row["last_sequence"]


def forget_producers(storage: Storage, prefix: str) -> int:
    """Forget the producers whose names begin so, and with them what they appended; give how many."""
    chosen = sa.delete(producers).where(
        producers.c.topic_id == storage.topic_id, producers.c.name.startswith(prefix, autoescape=True)
    )
    return storage.backend.transact(lambda connection: connection.execute(chosen).rowcount)


def _row(storage: Storage, connection: sa.Connection, name: str) -> sa.RowMapping | None:
    return connection.execute(sa.select(producers).where(*_key(storage, name))).mappings().one_or_none()


def _key(storage: Storage, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return producers.c.topic_id == storage.topic_id, producers.c.name == name
