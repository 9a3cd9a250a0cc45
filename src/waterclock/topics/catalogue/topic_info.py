"""What the catalogue says about a topic as a whole: read from its row and the ends of indexes, at any size."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES, ledgers, topics
from waterclock.message import Position
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.counter import Counter


class TopicInfo(NamedTuple):
    """What the catalogue says about a topic.

    Attributes
    ----------
    name
        Its name.
    ledgers, messages, size
        What remains of it, the open ledger included: how many ledgers and messages, and the bytes of the ledgers' files
        and of the entries that are not sealed.
    head
        Position of the next message to be written.
    roll_after, roll_size
        When the open ledger is closed: ns (None: no limit), bytes.
    retention
        How long messages are kept, ns; None: for ever.
    max_ahead, on_ahead
        How far ahead of the database's clock a publish_time or receive_time may be, ns (None: any), and what happens to
        a message that is further ahead: "reject" or "keep".
    created_at
        When it was made, ns.
    """

    name: str
    ledgers: int
    messages: int
    size: int
    head: Position
    roll_after: int | None
    roll_size: int
    retention: int | None
    max_ahead: int | None
    on_ahead: str
    created_at: int


def topic_info(storage: Storage) -> TopicInfo:
    """Describe one topic; NotFoundError where it was removed."""
    with storage.backend.snapshot() as connection:
        return _info(storage.row(connection))


def list_topics(backend: Backend) -> list[TopicInfo]:
    """Describe every topic, in alphabetical order, with one query."""
    with backend.snapshot() as connection:
        rows = connection.execute(sa.select(topics)).mappings().all()
    # Sorted here, because databases do not agree on the order of letters.
    return [_info(row) for row in sorted(rows, key=lambda row: row["name"])]


def bounds_of_topic(storage: Storage) -> Bounds | None:
    """Give the smallest and the largest times of what remains; None where there is nothing, or nothing was measured."""
    with storage.backend.snapshot(indexed=True) as connection:
        counter = Counter.of_row(storage.row(connection))
        begin = [connection.execute(smallest(time), {"topic": storage.topic_id}).scalar() for time in TIMES]
    if None in begin or counter.peak is None:
        return counter.bounds
    closed = Bounds.of_values([*begin, *(counter.peak[time] for time in BOUNDED)])
    return cast("Bounds", closed).joined(counter.bounds)


@cache
def smallest(time: str) -> sa.Select[*tuple[Any, ...]]:
    """Build what gives the smallest of a time: the first entry of an index."""
    # In this form, because a database that believes a table to be small takes any index for a min(), and walks it.
    begin = ledgers.c[f"begin_{time}"]
    statement = sa.select(begin).where(ledgers.c.topic_id == sa.bindparam("topic"), begin.is_not(None))
    return statement.order_by(begin).limit(1)


def _info(row: sa.RowMapping) -> TopicInfo:
    counter = Counter.of_row(row)
    return TopicInfo(
        name=row["name"],
        ledgers=counter.ledger - row["first_ledger"] + 1,
        messages=counter.ordinal - row["first_ordinal"],
        size=row["stored_bytes"] + counter.bytes,
        head=counter.position,
        roll_after=counter.roll_after,
        roll_size=counter.roll_size,
        retention=row["retention"],
        max_ahead=row["max_ahead"],
        on_ahead=row["on_ahead"] or "reject",
        created_at=row["created_at"],
    )
