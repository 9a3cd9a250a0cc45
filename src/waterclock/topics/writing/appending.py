"""Appends messages as entries, under the lock of the topic's counter, so that positions have no gaps.

The appends of a process's threads are grouped (`group_commit`). Each group is one transaction.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.database.schema.topic_catalogue import entries, topics
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, RefusedError, WaterclockError
from waterclock.message import Position
from waterclock.topics.catalogue.ledgers import close_ledger, write_counter
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.entries import Entry
from waterclock.topics.model.bounds import peak_columns
from waterclock.topics.model.clock_skew_limit import AheadLimit, Rejected
from waterclock.topics.model.counter import COUNTER_COLUMNS, Counter
from waterclock.topics.model.producer_state import ProducerAppend, Repeat
from waterclock.topics.writing.group_commit import WaitingAppend, line_of
from waterclock.topics.writing.producers import Producers

_TOKEN_BITS = 63

# Built once: building a statement takes longer than running it.
_INSERT = sa.insert(entries)
_FIND_TOKEN = sa.select(entries.c.ledger, entries.c.entry).where(
    entries.c.topic_id == sa.bindparam("topic"),
    entries.c.ledger >= sa.bindparam("since"),
    entries.c.token == sa.bindparam("token"),
)


_COUNTED = [topics.c[name] for name in COUNTER_COLUMNS]


class Appended(NamedTuple):
    """The result of an append.

    Attributes
    ----------
    first
        Position of the first message; the others follow it in the same entry. None for a repeat that is too old
        for its position to be remembered.
    count
        How many messages there were.
    duplicate
        True if the topic held them already and nothing was written.
    rejected
        The messages that were not written, because the topic rejects them. Of a repeat: those that were not written the
        first time, as long as its position is remembered.
    """

    first: Position | None
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # the word of the interface; tuple.count is not used
    duplicate: bool = False
    rejected: tuple[Rejected, ...] = ()


class _Append(WaitingAppend):
    """A pending append."""

    __slots__ = ("entry", "producer", "since", "storage", "token")

    def __init__(self, storage: Storage, entry: Entry, producer: ProducerAppend | None) -> None:
        super().__init__(len(entry.data))
        self.storage = storage
        self.entry = entry
        self.producer = producer
        self.token = secrets.randbits(_TOKEN_BITS)
        # End of the topic when a transaction first held this append; None before. If it is set, a commit without an
        # answer may have taken place, and writing the entry again would duplicate it.
        self.since: Position | None = None


def append_entry(storage: Storage, entry: Entry, producer: ProducerAppend | None = None) -> Appended:
    """Write one entry at the end of the topic; it is durable and readable when this returns.

    Raises `ProducerFencedError` if a newer instance of the producer has taken over. Raises `InvalidArgumentError` if
    the messages' numbers were used for others, were appended in part or lie before the producer's last, or if they are
    too large for the database. Raises `NotFoundError` if the topic was removed.
    """
    if len(entry.data) > storage.backend.largest_value:
        raise _too_large(storage, entry)
    if entry.messages == 0 and producer is None:
        return Appended(None, 0, rejected=entry.rejected)
    own = _Append(storage, entry, producer)
    line_of(storage.backend, storage.topic_id).pass_through(own, _carry_out)
    if own.error is not None:
        raise own.error
    return own.answer


class JointAppend:
    """Entries of several topics, and rows of the caller's, that are written in one transaction.

    After an UnavailableError the transaction may have been committed. `commit` may then be called again, also with
    entries that were encoded later: they are written only if the first ones were not.

    Parameters
    ----------
    backend
        The database of all topics.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tried: list[_Append] = []

    def commit(
        self, entries: Sequence[tuple[Storage, Entry]], write_rows: Callable[[SqlConnection], object]
    ) -> list[Appended]:
        """Write the entries and the rows.

        Raises `InvalidArgumentError` if an entry is too large for the database. Raises `NotFoundError` if a topic was
        removed. Raises `UnavailableError` if the database is busy or away.

        Parameters
        ----------
        entries
            Entries, each with its topic. A repeated call needs as many for the same topics.
        write_rows
            Writes the rows, or raises to write nothing. It runs first, and may run more than once: it must write the
            same rows then.
        """
        for storage, entry in entries:
            if len(entry.data) > storage.backend.largest_value:
                raise _too_large(storage, entry)
        own = [_Append(storage, entry, None) for storage, entry in entries]
        for each, tried in zip(own, self._tried, strict=False):
            each.token, each.since = tried.token, tried.since
        self._tried = own
        in_order = sorted(own, key=lambda each: each.storage.topic_id)  # in order, against deadlocks

        def write(connection: SqlConnection) -> None:
            write_rows(connection)
            for each in in_order:  # one at a time: together they may exceed the database's limit
                [answer] = _write(each.storage, [each], connection)
                if isinstance(answer, WaterclockError):
                    raise answer
                each.finish(answer)

        self._backend.transact(write, indexed=True)
        return [each.answer for each in own]


def _too_large(storage: Storage, entry: Entry) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"messages must fit an entry of {storage.backend.largest_value} bytes, got {entry.messages}"
        f" messages of {len(entry.data)} bytes. Append fewer at a time"
    )


def _carry_out(group: Sequence[_Append]) -> None:
    """Write a group in one transaction and finish each; if one append may be at fault for all, try each alone."""
    storage = group[0].storage
    try:
        answers = storage.backend.transact(partial(_write, storage, group), indexed=True)
    except (RefusedError, InvalidArgumentError) as error:
        _carry_out_alone(group, error)
    except WaterclockError as error:
        _fail_all(group, error)
    except Exception as error:  # noqa: BLE001  # any error belongs to the threads that wait
        _carry_out_alone(group, error)
    else:
        for each, answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                each.finish(error=answer)
            else:
                each.finish(answer)


def _carry_out_alone(group: Sequence[_Append], error: Exception) -> None:
    if len(group) == 1:
        group[0].finish(error=error)
        return
    for each in group:
        _carry_out([each])


def _fail_all(group: Sequence[_Append], error: WaterclockError) -> None:
    for each in group:
        # Each thread raises its own copy, because raising an error changes its traceback.
        own = error if each is group[0] else copy.copy(error)
        own.__cause__ = error.__cause__
        each.finish(error=own)


def _write(storage: Storage, group: Sequence[_Append], connection: SqlConnection) -> list[Appended | WaterclockError]:
    row = connection.execute(_locking_statements.of(storage.backend), {"topic": storage.topic_id}).first()
    storage.present(row)
    now, counter = row[0], Counter.of_values(row[1:])
    known = Producers(storage, connection)
    answers: list[Appended | WaterclockError] = []
    rows: list[dict[str, Any]] = []
    for each in group:
        answer = _answer(connection, each, known)
        place = counter.position
        each.since = each.since or place
        if answer is None:
            first: Position | None = None
            if each.entry.messages:
                if counter.is_due(now):
                    counter = close_ledger(storage, connection, counter, now)
                    place = counter.position
                following = counter.appended(each.entry.messages, each.size, each.entry.bounds, now)
                rows.append(_row(storage, counter, following, each))
                first, counter = place, following
            if each.producer is not None:
                known.note(each.producer, first, each.entry.verdict)
            answer = Appended(first, each.entry.messages, rejected=each.entry.rejected)
        answers.append(answer)
    known.write()
    if rows:
        connection.execute(_INSERT, rows if len(rows) > 1 else rows[0])  # a single row is cheaper without a bulk insert
        write_counter(storage, connection, counter)
    return answers


def _answer(connection: SqlConnection, append: _Append, known: Producers) -> Appended | WaterclockError | None:
    """Return the result of an append that must not be written: a repeat, or an error."""
    messages = append.entry.messages
    if append.since is not None:
        where = {"topic": append.storage.topic_id, "since": append.since.ledger, "token": append.token}
        arrived = connection.execute(_FIND_TOKEN, where).first()
        if arrived is not None:
            return Appended(Position(arrived.ledger, arrived.entry, 0), messages, rejected=append.entry.rejected)
    if append.producer is None:
        return None
    try:
        repeat = known.find_repeat(append.producer)
        return None if repeat is None else _repeated(append, repeat)
    except WaterclockError as error:
        return error


def _repeated(append: _Append, repeat: Repeat) -> Appended:
    """Return the first answer again: the clock has advanced, so a message rejected then might be accepted now."""
    entry, verdict = append.entry, repeat.verdict
    rejected: tuple[Rejected, ...] = ()
    if verdict is not None and entry.times is not None:
        limit = AheadLimit(append.storage.name, verdict.max_ahead, "reject")  # the limit may have been altered since
        rejected = limit.too_far(entry.times, verdict.judged_at)
        if len(rejected) != verdict.rejected and append.producer is not None:
            raise InvalidArgumentError(
                f"numbers {append.producer.first} to {append.producer.last} of producer {append.producer.name!r}"
                f" were already appended, with other event or receive times, and {verdict.rejected} of them were"
                " rejected. Append the corrected messages with higher numbers"
            )
    return Appended(repeat.first, entry.given - len(rejected), duplicate=True, rejected=rejected)


def _row(storage: Storage, counter: Counter, following: Counter, append: _Append) -> dict[str, Any]:
    return {
        "topic_id": storage.topic_id,
        "ledger": counter.ledger,
        "entry": counter.entries,
        "first_ordinal": counter.ordinal,
        "messages": append.entry.messages,
        "bytes": append.size,
        "token": append.token,
        "data": append.entry.data,
        **append.entry.bounds.columns(),
        **peak_columns(following.bounds.end if following.bounds else None),
    }


def _locking(backend: Backend) -> sa.Select[Any]:
    """Build the statement that locks the topic's row and reads its counter."""
    # key_share: PostgreSQL then lets readers of the row's key pass, and no statement changes the key.
    return (
        sa.select(backend.now_sql().label("now"), *_COUNTED)
        .where(topics.c.id == sa.bindparam("topic"))
        .with_for_update(key_share=True)
    )


_locking_statements = PerDatabaseCache[sa.Select[Any]](_locking)
"""One statement per database, so that each compiles it once."""
