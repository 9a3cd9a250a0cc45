"""Appending: one entry, one transaction, behind the lock of the topic's counter, so that positions have no holes."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.topic_catalogue import entries
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.topics.ahead import Rejected
from waterclock.topics.bounds import peak_columns
from waterclock.topics.counter import Counter
from waterclock.topics.entries import Entry
from waterclock.topics.ledgers import close_ledger, write_counter
from waterclock.topics.producers import ProducerAppend, Repeat, find_repeat, remember
from waterclock.topics.storage import Storage

_TOKEN_BITS = 63


class Appended(NamedTuple):
    """What an append did.

    Attributes
    ----------
    first
        Position of the first message; the others follow it in the same entry. None for a repeat that is too old
        for its position to be remembered, and where no message was written.
    count
        How many messages there were, without those that were rejected.
    duplicate
        True where the topic held them already and nothing was written.
    rejected
        The messages that were not written, because the topic does not take them. Of a repeat: those that were not
        written the first time, as long as its position is remembered.
    """

    first: Position | None
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # the word of the interface; tuple.count is not used
    duplicate: bool = False
    rejected: tuple[Rejected, ...] = ()


def append_entry(storage: Storage, entry: Entry, producer: ProducerAppend | None = None) -> Appended:
    """Write one entry at the end of the topic; it is durable and readable when this returns.

    An entry of which every message is rejected is not written, only remembered where its producer numbers them.

    Raises
    ------
    ProducerFencedError
        Where a newer instance of the producer has taken over.
    InvalidArgumentError
        Where the messages repeat a part of what the producer appended before, or are too large for the database.
    NotFoundError
        Where the topic was removed.
    """
    if len(entry.data) > storage.backend.largest_value:
        raise InvalidArgumentError(
            f"messages: {entry.messages} messages make an entry of {len(entry.data)} bytes, and the database takes"
            f" {storage.backend.largest_value} at once; append fewer at a time"
        )
    if entry.messages == 0 and producer is None:
        return Appended(None, 0, rejected=entry.rejected)
    token = secrets.randbits(_TOKEN_BITS)
    started_at: list[Position] = []

    def work(connection: sa.Connection) -> Appended:
        row, now = storage.lock(connection)
        counter = Counter.of_row(row)
        if started_at:
            arrived = _find_token(storage, connection, token, started_at[0])
            if arrived is not None:
                return Appended(arrived, entry.messages, rejected=entry.rejected)
        started_at[:] = started_at or [counter.position]
        repeat = None if producer is None else find_repeat(storage, connection, producer)
        if repeat is not None:
            return _repeated(storage, entry, repeat)
        first = _write(storage, connection, counter, entry, token, now) if entry.messages else None
        if producer is not None:
            remember(storage, connection, producer, first, entry.judged_at)
        return Appended(first, entry.messages, rejected=entry.rejected)

    return storage.backend.transact(work)


def _repeated(storage: Storage, entry: Entry, repeat: Repeat) -> Appended:
    """Answer as the first time: the clock has gone on since, so what was rejected then need not be now."""
    rejected: tuple[Rejected, ...] = ()
    if storage.ahead is not None and repeat.judged_at is not None:
        rejected = storage.ahead.too_far(entry.given, repeat.judged_at)
    return Appended(repeat.first, len(entry.given) - len(rejected), duplicate=True, rejected=rejected)


def _write(
    storage: Storage, connection: sa.Connection, counter: Counter, entry: Entry, token: int, now: int
) -> Position:
    if counter.is_due(now):
        counter = close_ledger(storage, connection, counter, now)
    following = counter.appended(entry.messages, len(entry.data), entry.bounds, now)
    connection.execute(
        sa.insert(entries),
        {
            "topic_id": storage.topic_id,
            "ledger": counter.ledger,
            "entry": counter.entries,
            "first_ordinal": counter.ordinal,
            "messages": entry.messages,
            "bytes": len(entry.data),
            "token": token,
            "data": entry.data,
            **entry.bounds.columns(),
            **peak_columns(following.bounds.end if following.bounds else None),
        },
    )
    write_counter(storage, connection, following)
    return counter.position


def _find_token(storage: Storage, connection: sa.Connection, token: int, since: Position) -> Position | None:
    # The transaction is being tried again. Where the connection broke during the commit, nobody told us whether it
    # took place, and writing the entry once more would double it.
    statement = sa.select(entries.c.ledger, entries.c.entry).where(
        entries.c.topic_id == storage.topic_id, entries.c.ledger >= since.ledger, entries.c.token == token
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else Position(row.ledger, row.entry, 0)
