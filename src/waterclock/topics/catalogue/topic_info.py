"""Describes a whole topic, equally fast at any size. Reads only its row and the ends of indexes."""

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
    """The description of a topic in the catalogue.

    Attributes
    ----------
    name
        Its name.
    ledgers, messages, size
        The remaining ledgers and messages, including the open ledger, and the bytes of ledger files and unsealed
        entries.
    head
        Position of the next message to be written.
    roll_after, roll_size
        When the open ledger is closed: ns (None: no limit), bytes.
    retention
        How long messages are kept, ns; None: forever.
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
    """Describe one topic; NotFoundError if it was removed."""
    with storage.backend.snapshot() as connection:
        return _info(storage.row(connection))


def list_topics(backend: Backend) -> list[TopicInfo]:
    """Describe every topic, in alphabetical order, with one query."""
    with backend.snapshot() as connection:
        rows = connection.execute(sa.select(topics)).mappings().all()
    # Sorted here, because databases do not agree on the order of letters.
    return [_info(row) for row in sorted(rows, key=lambda row: row["name"])]


def bounds_of_topic(storage: Storage) -> Bounds | None:
    """Return the smallest and largest times of the remaining messages; None if none were measured."""
    with storage.backend.snapshot(indexed=True) as connection:
        counter = Counter.of_row(storage.row(connection))
        begin = [connection.execute(smallest(time), {"topic": storage.topic_id}).scalar() for time in TIMES]
    if None in begin or counter.peak is None:
        return counter.bounds
    closed = Bounds.of_values([*begin, *(counter.peak[time] for time in BOUNDED)])
    return cast("Bounds", closed).joined(counter.bounds)


@cache
def smallest(time: str) -> sa.Select[*tuple[Any, ...]]:
    """Build the statement for the smallest of a time: the first entry of an index."""
    # In this form, because a database that expects a small table scans any index for a min().
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
