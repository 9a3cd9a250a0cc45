"""Moves subscriptions past messages that are too old. No producer's clock can falsify their age.

The catalogue's bounds determine which ledgers are expired. Only the first ledger that is not wholly expired is read, to
find where exactly a subscription continues. If that ledger cannot be read, the subscription continues at the ledger's
beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers, topics
from waterclock.errors import DamagedError, SchemaError, UnavailableError
from waterclock.message import Position
from waterclock.time import MIN_NS, format_time
from waterclock.topics.catalogue.ledgers import ledger_from
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding.positions import Place
from waterclock.topics.finding.subscription_rows import advance, list_infos
from waterclock.topics.format.row_groups import row_groups_from_json
from waterclock.topics.model.bounds import time_column
from waterclock.topics.model.counter import Counter
from waterclock.topics.model.names import new_holder
from waterclock.topics.reading.reading import read_chunks
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.upkeep.retention import delete_before, end_of_older

LEASE = 30_000_000_000
"""How long an expiry may go without renewing its lock before another one may begin, ns."""

_BY = "effective_time"
_COLUMNS = ("publish_time", "receive_time")  # effective_time is the smaller of the two

_log = logging.getLogger(__name__)


class Expired(NamedTuple):
    """The result of an expiry."""

    position: Position
    """The first message that is not expired; the topic's head if all are. If its ledger cannot be read, the beginning
    of that.
    """
    messages: int  # how many unread messages subscriptions skipped, each subscription counted
    ledgers: int = 0  # how many whole ledgers were deleted


def expire_subscription(storage: Storage, name: str, ttl: int) -> Expired:
    """Move one subscription past the messages whose smaller of publish_time and receive_time is before now - ttl."""
    with _alone(storage):
        return _expire(storage, name, _cutoff(storage, ttl))


def expire_topic(storage: Storage, ttl: int) -> Expired:
    """Expire every subscription's messages likewise, then delete ledgers that have expired as a whole."""
    cutoff = _cutoff(storage, ttl)
    messages = 0
    with _alone(storage) as still_here:
        for subscription in list_infos(storage):
            still_here()
            messages += _expire(storage, subscription.name, cutoff).messages
        end = end_of_older(storage, _BY, cutoff)
        first = first_left(storage, end, cutoff).position
        still_here()
        return Expired(first, messages, delete_before(storage, end))


def _cutoff(storage: Storage, ttl: int) -> int:
    return max(storage.backend.now() - ttl, MIN_NS)


def _expire(storage: Storage, name: str, cutoff: int) -> Expired:
    position = list_infos(storage, name)[0].position
    place = first_left(storage, position, cutoff)
    if place.position <= position:
        return Expired(position, 0)
    return Expired(place.position, advance(storage, name, place))


def first_left(storage: Storage, start: Position, cutoff: int) -> Place:
    """Find the first message at or after ``start`` that is not expired, or the head if all are.

    Raises `UnavailableError` if a file cannot be reached now. One that is lost or damaged ends the search at its
    ledger's beginning, or at ``start``: nothing is skipped because it could not be read.
    """
    position = start
    while True:
        with storage.backend.snapshot() as connection:
            row = connection.execute(_ledger_reaching(storage, position.ledger, cutoff)).one_or_none()
            counter = Counter.of_row(storage.row(connection))
        if row is None and (counter.bounds is None or counter.bounds.end[_BY] < cutoff):
            return Place(counter.position, counter.ordinal)
        ledger, ordinal = (row.ledger, row.first_ordinal) if row else _open_ledger(counter)
        begin = max(position, Position(ledger, 0, 0))
        if row is not None and row.begin is not None and row.begin >= cutoff:
            return Place(begin, ordinal)  # none of its messages is expired, so its file need not be read
        try:
            place = _in_ledger(storage, ledger, begin, cutoff)
        except (LostFileError, DamagedError, SchemaError) as error:
            _log.warning("expiry of topic %r stops at position %s: %s", storage.name, begin, error)
            # A subscription that is already there does not move, and needs no ordinal.
            return Place(begin, ordinal)
        if place is not None:
            return place
        if row is None:
            return Place(counter.position, counter.ordinal)
        position = Position(ledger + 1, 0, 0)


def _ledger_reaching(storage: Storage, first: int, cutoff: int) -> sa.Select[*tuple[Any, ...]]:
    reaches = sa.or_(ledgers.c[f"end_{_BY}"] >= cutoff, ledgers.c[f"end_{_BY}"].is_(None))
    publish, receive = ledgers.c.begin_publish_time, ledgers.c.begin_receive_time
    return (
        sa.select(
            ledgers.c.ledger,
            ledgers.c.first_ordinal,
            sa.case((publish < receive, publish), else_=receive).label("begin"),
        )
        .where(
            ledgers.c.topic_id == storage.topic_id,
            ledgers.c.ledger >= first,
            ledgers.c.messages > 0,
            ledgers.c.state != "lost",
            reaches,
        )
        .order_by(ledgers.c.ledger)
        .limit(1)
    )


def _open_ledger(counter: Counter) -> tuple[int, int]:
    return counter.ledger, counter.ordinal - counter.messages


def _in_ledger(storage: Storage, ledger: int, begin: Position, cutoff: int) -> Place | None:
    """Find the first unexpired message of one ledger from ``begin`` on, reading no more than necessary."""
    start = max(begin, _first_piece(storage, ledger, begin, cutoff))
    for chunk in read_chunks(storage, start, Position(ledger + 1, 0, 0), _COLUMNS):
        fresh = time_column(chunk.table, _BY).to_numpy() >= cutoff
        if fresh.any():
            row = int(np.argmax(fresh))
            entry, index = (chunk.table.column(name)[row].as_py() for name in ("entry", "index"))
            return Place(Position(chunk.ledger, entry, index), chunk.first_ordinal + row)
    return None


def _first_piece(storage: Storage, ledger: int, begin: Position, cutoff: int) -> Position:
    """Return the start of the first row group or entry that may hold such a message, according to the catalogue."""
    with storage.backend.snapshot() as connection:
        row = ledger_from(storage, connection, ledger)
        if row is not None and row["ledger"] == ledger and row["state"] == "sealed":
            groups = row_groups_from_json(row["row_groups"]) if row["row_groups"] else []
            starts = [Position(ledger, group.entry, group.index) for group in groups]
            stops = [*starts[1:], Position(ledger + 1, 0, 0)]
            left = (
                start
                for group, start, stop in zip(groups, starts, stops, strict=True)
                if stop > begin and group.bounds.end[_BY] >= cutoff
            )
            return next(left, begin)
        statement = sa.select(sa.func.min(entries.c.entry)).where(
            entries.c.topic_id == storage.topic_id,
            entries.c.ledger == ledger,
            entries.c.entry >= begin.entry,
            entries.c[f"end_{_BY}"] >= cutoff,
        )
        entry = connection.execute(statement).scalar()
        return begin if entry is None else Position(ledger, entry, 0)


@contextmanager
def _alone(storage: Storage) -> Generator[Callable[[], None]]:
    """Lock out other expiries of the topic; yield a function that extends the lock."""
    owner = new_holder()

    def claim(connection: sa.Connection) -> None:
        row, now = storage.lock(connection)
        if row["expiring_owner"] not in (None, owner) and row["expiring_until"] > now:
            raise UnavailableError(
                f"cannot expire topic {storage.name!r}: another expiry is running, and its lease, held by"
                f" {row['expiring_owner']}, lasts at least until {format_time(row['expiring_until'])}. Try again later"
            )
        _write(connection, {"expiring_owner": owner, "expiring_until": now + LEASE})

    def free(connection: sa.Connection) -> None:
        row, _ = storage.lock(connection)
        if row["expiring_owner"] == owner:
            _write(connection, {"expiring_owner": None, "expiring_until": None})

    def _write(connection: sa.Connection, values: dict[str, object]) -> None:
        connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(values))

    storage.backend.transact(claim)
    try:
        yield lambda: storage.backend.transact(claim)
    finally:
        storage.backend.transact(free)
