"""The topic: a log of messages that can be found by time. The way in; the work is in the files beside it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.arrow import from_arrow
from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import topics
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from waterclock.message import Message, Position
from waterclock.time import Duration, Time, to_duration, to_time
from waterclock.topics.appending import Appended, append_entry
from waterclock.topics.counter import Counter
from waterclock.topics.entries import encode_entry
from waterclock.topics.finding import Found, check_by, find_first
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.ledgers import LedgerInfo, list_ledgers, roll
from waterclock.topics.looking_up import look_up
from waterclock.topics.positions import entry_boundary
from waterclock.topics.producers import ProducerAppend
from waterclock.topics.reading import check_columns, positioned, read_chunks
from waterclock.topics.sealing import seal_ledgers
from waterclock.topics.slicing import Slice, plan_slices
from waterclock.topics.storage import Storage

_LONGEST_NAME = 255
_MESSAGES_AT_ONCE = 4096


class Topic:
    """A log of messages, in ledgers. Made by ``Database.create_topic`` and ``Database.topic``. Safe between threads.

    Parameters
    ----------
    storage
        Where it lies.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @classmethod
    def create(
        cls,
        backend: Backend,
        ledgers: str,
        name: str,
        *,
        roll_after: Duration | None,
        roll_size: int,
        retention: Duration | None,
        exist_ok: bool,
    ) -> Self:
        """Make a topic; `Database.create_topic` says what the options mean."""
        values = {
            "name": check_name(name),
            "roll_after": None if roll_after is None else to_duration(roll_after, "roll_after", minimum=1),
            "roll_size": _check_size(roll_size),
            "retention": None if retention is None else to_duration(retention, "retention", minimum=1),
            "ledger": 0,
            "entries": 0,
            "messages": 0,
            "bytes": 0,
            "ordinal": 0,
        }

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.insert(topics), {**values, "created_at": backend.now(connection)})

        try:
            backend.transact(work)
        except exc.IntegrityError:
            if not exist_ok:
                raise AlreadyExistsError(
                    f"topic {name!r} exists already; open it, or create it with exist_ok=True"
                ) from None
        return cls.open(backend, ledgers, name)

    @classmethod
    def open(cls, backend: Backend, ledgers: str, name: str) -> Self:
        """Open a topic; NotFoundError where there is none of this name."""
        statement = sa.select(topics.c.id).where(topics.c.name == check_name(name))
        with backend.snapshot() as connection:
            topic_id = connection.execute(statement).scalar()
        if topic_id is None:
            raise NotFoundError(f"there is no topic {name!r} in {backend.url.render_as_string()}; create it first")
        return cls(Storage(topic_id, name, backend, LedgerFiles(ledgers)))

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.storage.name

    @property
    def head(self) -> Position:
        """The position of the next message to be written."""
        with self.storage.backend.snapshot() as connection:
            return Counter.of_row(self.storage.row(connection)).position

    def append(
        self,
        messages: Iterable[Message] | pa.Table | pa.RecordBatch,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
    ) -> Appended:
        """Write messages as one entry at the end; durable and readable when this returns.

        publish_time and receive_time are filled in with the database's clock, read once before the messages are
        encoded, where they are None. (SQLite has no clock of its own: there it is the machine's.)

        Parameters
        ----------
        messages
            At least one message, or a table with the columns source, stream, event_time and, where you have them,
            publish_time, receive_time (int64 ns), headers and payload.
        producer
            Name of whoever numbers its messages. Then a repeat of an append writes nothing and gives the position of
            the first time, as long as it is one of the producer's last 5 appends.
        sequence
            Number of the first of the messages; the others count on from it. Needed with ``producer``.
        epoch
            Which instance of the producer this is: a lower one than the topic knows is refused. None: not compared.

        Raises
        ------
        InvalidArgumentError
            Where there is no message, or some but not exactly the messages of an earlier append are repeated.
        SchemaError
            Where a table lacks a column.
        ProducerFencedError
            Where a newer instance of the producer has taken over.
        UnavailableError
            Where the database stays busy or away.
        """
        entry = encode_entry(messages, self.storage.backend.now)
        return append_entry(self.storage, entry, _producer_append(producer, sequence, epoch, entry.messages))

    def read(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Read messages in the order of their positions, up to where the topic ends when reading begins.

        Parameters
        ----------
        start
            Position to begin at; None: the first message that is left.
        stop
            Position to stop before.
        since, until
            Instead of those, by publish_time: begin at, and stop before, the first message at or after that time
            (what `find` gives). Where the times are disordered, later messages of a smaller time are not read
            behind ``until``, and messages of a smaller time that stand behind ``since`` are.
        limit
            Messages to read at most.

        Raises
        ------
        UnavailableError
            Where the file of a ledger cannot be read; the text names it.
        """
        for batch in self.read_arrow(start, stop, since=since, until=until, limit=limit):
            for first in range(0, batch.num_rows, _MESSAGES_AT_ONCE):
                yield from from_arrow(batch.slice(first, _MESSAGES_AT_ONCE))

    def read_arrow(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read as `read` does, in record batches of `waterclock.arrow.POSITIONED_SCHEMA`.

        Parameters
        ----------
        columns
            The columns wanted, in this order; None: all. What is not asked for is not read.
        """
        wanted = check_columns(columns)
        left = _check_limit(limit)
        first, last = self._range(start, stop, since, until)
        for chunk in read_chunks(self.storage, first, last, wanted):
            for batch in positioned(chunk, wanted):
                yield batch if left is None else batch.slice(0, left)
                if left is not None:
                    left -= batch.num_rows
                    if left <= 0:
                        return

    def find(self, time: Time, by: str = "publish_time") -> Found:
        """Find the first message that is left at or after a time, exact to the message, however disordered they are.

        One catalogue query and at most one ranged read of a file, whatever the size of the topic.

        Parameters
        ----------
        time
            An int (ns), an aware datetime, an ISO 8601 text with offset, or how long ago: ``"2h"``.
        by
            ``"publish_time"``, ``"event_time"`` or ``"receive_time"``.

        Raises
        ------
        UnavailableError
            Where a file cannot be read now. A file that is lost is passed over, with a warning in the log.
        """
        return find_first(self.storage, check_by(by), self._time(time, "time"))

    def ledgers(self) -> list[LedgerInfo]:
        """Give what the catalogue says about each ledger that is left; the open one is the last."""
        return list_ledgers(self.storage)

    def roll(self) -> None:
        """Close the open ledger and open the next one; nothing to do while it is empty."""
        roll(self.storage)

    def seal(self) -> int:
        """Turn every closed ledger that nobody else is sealing into a file; give how many.

        The open ledger is closed first where its age or size says so. What a killed sealer left is removed.

        Raises
        ------
        UnavailableError
            Where a file cannot be written or reads back differently; the ledger stays as it was.
        """
        return seal_ledgers(self.storage)

    def plan(
        self, start: Position | None = None, stop: Position | None = None, *, max_messages: int = 1_000_000
    ) -> list[Slice]:
        """Cut a range into slices that other processes can read, each on its own, with `slicing.read_slice`.

        The list is one snapshot of the topic, in the order of positions.

        Parameters
        ----------
        start, stop
            First position and the one to stop before; None: all that is there.
        max_messages
            Size of a slice: it holds more only where a single row group or entry does.
        """
        first = Position(0, 0, 0) if start is None else _check_position(start, "start")
        return plan_slices(self.storage, first, stop, max_messages)

    def advance(self, position: Position, messages: int) -> Position:
        """Give the position after about so many messages: at the end of an entry, of at least one, never past the end.

        An entry is not cut, because a batcher takes what arrived together together.
        """
        return entry_boundary(self.storage, _check_position(position, "position"), messages)

    def messages_at(
        self, positions: Sequence[Position] | pa.Table | pa.RecordBatch, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read the messages at some positions, a row each, in the order in which the positions are given.

        Parameters
        ----------
        positions
            Positions, or a table with the columns ledger, entry and index.
        columns
            The columns wanted; None: all of `waterclock.arrow.POSITIONED_SCHEMA`.

        Raises
        ------
        NotFoundError
            Where no message stands at a position (any more).
        """
        return look_up(self.storage, positions, check_columns(columns))

    def payloads_at(self, positions: Sequence[Position] | pa.Table | pa.RecordBatch) -> pa.ChunkedArray:
        """Read the payloads at some positions, in the order in which the positions are given; see `messages_at`."""
        return self.messages_at(positions, ["payload"]).column("payload")

    def _range(
        self, start: Position | None, stop: Position | None, since: Time | None, until: Time | None
    ) -> tuple[Position, Position]:
        if start is not None and since is not None:
            raise InvalidArgumentError(f"since: {since!r} and start: {start!r} both say where to begin; give one")
        if stop is not None and until is not None:
            raise InvalidArgumentError(f"until: {until!r} and stop: {stop!r} both say where to stop; give one")
        end = self.head
        if until is not None:
            end = min(end, self.find(until).position)
        elif stop is not None:
            end = min(end, _check_position(stop, "stop"))
        if since is not None:
            return self.find(since).position, end
        return Position(0, 0, 0) if start is None else _check_position(start, "start"), end

    def _time(self, time: Time, name: str) -> int:
        # Only a duration is counted back from now, and only then is the clock asked.
        now = self.storage.backend.now() if isinstance(time, str) else None
        return to_time(time, name, now=now)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} in {self.storage.backend.url.render_as_string()}>"


def topic_names(backend: Backend) -> list[str]:
    """Name every topic, in alphabetical order."""
    with backend.snapshot() as connection:
        return sorted(connection.execute(sa.select(topics.c.name)).scalars())


def check_name(name: str) -> str:
    """Check the name of a topic, producer or subscription: 1 to 255 characters, none of them a control character."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need not check types
        raise InvalidArgumentError(f"name: {name!r} is a {type(name).__name__}; give a text")
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise InvalidArgumentError(f"name: {name!r} has {len(name)} characters; give 1 to {_LONGEST_NAME}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidArgumentError(f"name: {name!r} holds a control character; use letters, digits, '-' and '.'")
    return name


def _check_size(size: int) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"roll_size: {size!r} is no number of bytes; give an int of at least 1")
    return size


def _check_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"limit: {limit!r} is no number of messages; give an int of at least 1")
    return limit


def _check_position(position: Position, name: str) -> Position:
    if not isinstance(position, Position):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"{name}: {position!r} is no Position; write Position(ledger, entry, index)")
    return position


def _producer_append(
    producer: str | None, sequence: int | None, epoch: int | None, messages: int
) -> ProducerAppend | None:
    if (producer is None) != (sequence is None):
        raise InvalidArgumentError(f"producer: {producer!r} and sequence: {sequence!r} only mean something together")
    if producer is None or sequence is None:
        return None
    return ProducerAppend(check_name(producer), sequence, sequence + messages - 1, epoch)
