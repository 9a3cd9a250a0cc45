"""Expiring: passing over messages that are older than they may be, by the time that no producer's clock can forge."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.topic_catalogue import topics
from waterclock.errors import UnavailableError
from waterclock.message import Position
from waterclock.time import MIN_NS, format_time
from waterclock.topics.finding import find_first, find_from
from waterclock.topics.names import new_holder
from waterclock.topics.positions import place_of
from waterclock.topics.retention import delete_before
from waterclock.topics.storage import Storage
from waterclock.topics.subscription_rows import advance, list_infos

LEASE = 30_000_000_000
"""How long an expiry may be silent before another one may begin, ns."""


class Expired(NamedTuple):
    """What an expiry did.

    Attributes
    ----------
    position
        The first message that is not expired; the topic's head where all are.
    messages
        How many unread messages subscriptions passed over, each subscription counted.
    ledgers
        How many whole ledgers were deleted.
    """

    position: Position
    messages: int
    ledgers: int = 0


def expire_subscription(storage: Storage, name: str, ttl: int) -> Expired:
    """Move one subscription past the messages whose smaller of publish_time and receive_time is before now - ttl."""
    with _alone(storage):
        return _expire(storage, name, _cutoff(storage, ttl))


def expire_topic(storage: Storage, ttl: int) -> Expired:
    """Do so with every subscription, then delete the ledgers of which nothing is left."""
    cutoff = _cutoff(storage, ttl)
    messages = 0
    with _alone(storage) as still_here:
        for subscription in list_infos(storage):
            still_here()
            messages += _expire(storage, subscription.name, cutoff).messages
        first = find_first(storage, "effective_time", cutoff).position
        still_here()
        return Expired(first, messages, delete_before(storage, first))


def _cutoff(storage: Storage, ttl: int) -> int:
    return max(storage.backend.now() - ttl, MIN_NS)


def _expire(storage: Storage, name: str, cutoff: int) -> Expired:
    position = list_infos(storage, name)[0].position
    first = find_from(storage, position, "effective_time", cutoff).position
    if first <= position:
        return Expired(position, 0)
    return Expired(first, advance(storage, name, place_of(storage, first)))


@contextmanager
def _alone(storage: Storage) -> Generator[Callable[[], None]]:
    """Keep other expiries of the topic out; what is given prolongs that."""
    owner = new_holder()

    def claim(connection: sa.Connection) -> None:
        row, now = storage.lock(connection)
        if row["expiring_owner"] not in (None, owner) and row["expiring_until"] > now:
            raise UnavailableError(
                f"an expiry of topic {storage.name!r} is running already, by {row['expiring_owner']} until"
                f" {format_time(row['expiring_until'])} or longer; try again later"
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
