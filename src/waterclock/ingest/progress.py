"""The progress of an ingest, as counts and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened to an ingest."""

    name: str
    """The event's name: ``connected``, ``disconnected``, ``subscribed``, ``session_lost``, ``database_away``,
    ``database_back``, ``dead_letter``, ``rejected``, ``broker_dropped``, ``no_room``, ``silent_session``, ``lag``,
    ``ahead``, ``reloaded``, ``not_reloaded``, ``stopped``; of Kafka also ``assigned``, ``revoked``, ``waits``,
    ``records_lost``, ``topic_dropped``, ``topic_recreated``, ``broker_error``.
    """
    text: str  # the same for people
    facts: Mapping[str, object] = {}
    is_warning: bool = False  # whether a person should look at it


Tell = Callable[[Event], None]
"""Called with each event, from any thread."""


@dataclass
class IngestProgress:
    """Counts since the start. Each has one thread that writes it."""

    received: int = 0  # published messages that arrived
    unprotected: int = 0  # published messages at QoS 0 that arrived, which no broker sends again
    appended: int = 0  # messages that were appended: a published one may hold several
    appends: int = 0  # transactions that appended something
    dead: int = 0  # published messages that could not be mapped
    repeats: int = 0  # published messages that had been appended before
    skipped: int = 0  # retained messages that were not taken
    lost: int = 0  # messages at QoS 0 that were dropped because the inbox was full
    broker_dropped: int = 0  # messages that the broker reports as dropped since the start, for all its clients
    connected: int = 0  # connections that are open; of Kafka, 1 while the cluster answers
    stopped: int = 0  # partitions of Kafka that are stopped, since their next records are gone
    is_database_away: bool = False  # whether the last append failed because the database was busy or unavailable
    waiting: Callable[[], int] = field(default=lambda: 0, repr=False)

    def facts(self) -> dict[str, object]:
        """Return the counts by name, and how many messages wait for their append."""
        counts = {name: value for name, value in vars(self).items() if name != "waiting"}
        return {**counts, "waiting": self.waiting()}
