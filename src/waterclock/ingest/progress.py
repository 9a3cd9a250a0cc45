"""The progress of an ingest: counts and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened to an ingest.

    Attributes
    ----------
    name
        The event's name: ``connected``, ``disconnected``, ``subscribed``, ``session_lost``, ``database_away``,
        ``database_back``, ``dead_letter``, ``rejected``, ``broker_dropped``, ``no_room``, ``silent_session``, ``lag``,
        ``ahead``, ``reloaded``, ``not_reloaded``, ``stopped``; of Kafka also ``assigned``, ``revoked``, ``waits``,
        ``records_lost``, ``topic_dropped``, ``topic_recreated``, ``broker_error``.
    text
        The same for people.
    facts
        Its details.
    is_warning
        Whether a person should look at it.
    """

    name: str
    text: str
    facts: Mapping[str, object] = {}
    is_warning: bool = False


Tell = Callable[[Event], None]
"""Called with each event, from any thread."""


@dataclass
class IngestProgress:
    """Counts since the start. Each has one thread that writes it.

    Attributes
    ----------
    received
        Published messages that arrived.
    unprotected
        Published messages at QoS 0 that arrived, which no broker sends again.
    appended
        Messages that were appended: a published one may hold several.
    appends
        Transactions that appended something.
    dead
        Published messages that could not be mapped.
    repeats
        Published messages that had been appended before.
    skipped
        Retained messages that were not taken.
    lost
        Messages at QoS 0 that were dropped because the inbox was full.
    broker_dropped
        Messages that the broker reports as dropped since the start, for all its clients.
    connected
        Connections that are open; of Kafka, 1 while the cluster answers.
    stopped
        Partitions of Kafka that are stopped, since their next records are gone.
    is_database_away
        Whether the last append failed because the database was busy or unavailable.
    """

    received: int = 0
    unprotected: int = 0
    appended: int = 0
    appends: int = 0
    dead: int = 0
    repeats: int = 0
    skipped: int = 0
    lost: int = 0
    broker_dropped: int = 0
    connected: int = 0
    stopped: int = 0
    is_database_away: bool = False
    waiting: Callable[[], int] = field(default=lambda: 0, repr=False)

    def facts(self) -> dict[str, object]:
        """Return the counts by name, and how many messages wait for their append."""
        counts = {name: value for name, value in vars(self).items() if name != "waiting"}
        return {**counts, "waiting": self.waiting()}
