"""Reads and writes the catalogue's rows of a topic's producers, in the transaction that appends."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import producers
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.names import check_name
from waterclock.topics.model.producer_state import ProducerAppend, ProducerState, Repeat, Verdict, check_sequence

# Built once: building a statement takes longer than running it.
_HERE = (producers.c.topic_id == sa.bindparam("topic"), producers.c.name == sa.bindparam("producer"))
_READ = sa.select(producers.c.producer_epoch, producers.c.last_sequence, producers.c.recent, producers.c.covered).where(
    *_HERE
)
_INSERT = sa.insert(producers)
_UPDATE = (
    sa.update(producers)
    .where(*_HERE)
    .values({name: sa.bindparam(f"new_{name}") for name in ("producer_epoch", "last_sequence", "recent", "covered")})
)


class Tenure(NamedTuple):
    """A new instance of a producer."""

    producer_epoch: int  # its number; the topic refuses appends of instances with smaller numbers
    last: int | None  # number of the producer's last message; None if it has none
    numbering: ProducerState  # the record of the producer's numbers


class Producers:
    """The producers of a topic as one transaction reads and writes them, under the topic's lock.

    Each is read once and written once, however many of its appends the transaction holds.

    Parameters
    ----------
    storage
        The topic.
    connection
        The transaction.
    """

    def __init__(self, storage: Storage, connection: SqlConnection) -> None:
        self._storage = storage
        self._connection = connection
        self._known: dict[str, ProducerState | None] = {}
        self._read: dict[str, ProducerState | None] = {}

    def find_repeat(self, append: ProducerAppend) -> Repeat | None:
        """Return the earlier append if this one is a repeat, in the topic or this transaction; None if it is new."""
        numbering = self.get(append.name)
        return None if numbering is None else numbering.find_repeat(append, self._storage.name)

    def note(self, append: ProducerAppend, position: Position | None, verdict: Verdict | None) -> None:
        """Note an append that is being written."""
        numbering = self.get(append.name) or ProducerState(append.producer_epoch or 0)
        self.put(append.name, numbering.appended(append, position, verdict))

    def get(self, name: str) -> ProducerState | None:
        """Return the record of a producer; None if missing."""
        if name not in self._known:
            self._known[name] = self._read[name] = read_producer(self._storage, self._connection, name)
        return self._known[name]

    def put(self, name: str, numbering: ProducerState) -> None:
        """Replace the record of a producer that was read before."""
        self._known[name] = numbering

    def write(self) -> None:
        """Write the changed records."""
        for name, numbering in self._known.items():
            if numbering is None or numbering is self._read[name]:
                continue
            columns = numbering.columns()
            if self._read[name] is None:
                self._connection.execute(_INSERT, [{"topic_id": self._storage.topic_id, "name": name, **columns}])
            else:
                values = {f"new_{column}": value for column, value in columns.items()}
                self._connection.execute(_UPDATE, {**_key(self._storage, name), **values})


def read_producer(storage: Storage, connection: SqlConnection, name: str) -> ProducerState | None:
    """Read the state of a producer; None if unknown."""
    row = connection.execute(_READ, _key(storage, name)).first()
    return None if row is None else ProducerState.read(*row)


def numbered(
    producer: str | None, sequence: int | None, producer_epoch: int | None, messages: int, checksum: int
) -> ProducerAppend | None:
    """Check a caller's arguments about its producer; None without a producer."""
    if (producer is None) != (sequence is None):
        raise InvalidArgumentError(f"producer and sequence must be given together, got {producer!r} and {sequence!r}")
    if producer is None or sequence is None:
        return None
    if producer_epoch is not None and (not isinstance(producer_epoch, int) or isinstance(producer_epoch, bool)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"epoch must be an int or None, got {producer_epoch!r}")
    first = check_sequence(sequence, messages)
    return ProducerAppend(check_name(producer), first, first + messages - 1, producer_epoch, checksum)


def take_over(storage: Storage, name: str) -> Tenure:
    """Start a new instance of a producer: fence all earlier ones."""

    def fence_earlier(connection: sa.Connection) -> Tenure:
        storage.lock(connection)
        known = Producers(storage, connection)
        before = known.get(name) or ProducerState(0)
        numbering = ProducerState(before.producer_epoch + 1, before.last, before.recent, before.covered)
        known.put(name, numbering)
        known.write()
        return Tenure(numbering.producer_epoch, numbering.last, numbering)

    return storage.backend.transact(fence_earlier)


def newest_append(storage: Storage, name: str) -> Position | None:
    """Return the position of a producer's newest append; None without one, or if all of it was rejected."""
    with storage.backend.snapshot() as connection:
        numbering = read_producer(storage, connection, name)
    return numbering.recent[-1].position if numbering is not None and numbering.recent else None


def newest_numbers(storage: Storage, name: str) -> tuple[int, int] | None:
    """Return the first and the last number of a producer's newest append; None if none is remembered."""
    with storage.backend.snapshot() as connection:
        numbering = read_producer(storage, connection, check_name(name))
    return numbering.recent[-1][:2] if numbering is not None and numbering.recent else None


def last_sequence(storage: Storage, name: str) -> int | None:
    """Return the number of the last message that a producer has appended; None before the first."""
    with storage.backend.snapshot() as connection:
        numbering = read_producer(storage, connection, check_name(name))
    return None if numbering is None else numbering.last


def producers_named(storage: Storage, prefix: str) -> dict[str, ProducerState]:
    """Return the states of the producers whose names have this prefix, by name."""
    chosen = sa.select(*_READ.selected_columns, producers.c.name).where(*_begins(storage, prefix))
    with storage.backend.snapshot() as connection:
        return {name: ProducerState.read(*row) for *row, name in connection.execute(chosen)}


def forget_producers(storage: Storage, prefix: str) -> int:
    """Forget the producers whose names have this prefix, with their appends; return how many."""
    chosen = sa.delete(producers).where(*_begins(storage, prefix))
    return storage.backend.transact(lambda connection: connection.execute(chosen).rowcount)


def _begins(storage: Storage, prefix: str) -> tuple[sa.ColumnElement[bool], ...]:
    return producers.c.topic_id == storage.topic_id, producers.c.name.startswith(prefix, autoescape=True)


def _key(storage: Storage, name: str) -> dict[str, Any]:
    return {"topic": storage.topic_id, "producer": name}
