"""The messages and dead letters of one append, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waterclock.ingest.storing.encoding import encode_in_pieces
from waterclock.ingest.stream_lags import MOST_STREAMS, LagRange, StreamName
from waterclock.message import Message
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.entries import Entry
from waterclock.topics.topic import Topic


@dataclass
class Stored:
    """The outcome of some received messages."""

    appended: int = 0  # messages that were appended to topics: a published one may hold several
    dead: int = 0  # published messages that could not be mapped
    repeats: int = 0  # published messages that had been appended before
    skipped: int = 0  # published messages that were not needed, such as retained ones that were taken before
    rejected: int = 0  # messages that the topic rejected, because their times are too far ahead
    last_reason: str | None = None  # reason of the last dead letter; None without dead letters
    lags: dict[StreamName, LagRange] = field(default_factory=dict[StreamName, LagRange])
    """Receive time minus event time of the appended messages, by source and stream."""


@dataclass
class AppendPlan:
    """The messages of one transaction."""

    received: int  # when they were received, ns
    dead_letters: Topic  # the topic of messages that cannot be mapped
    latest: dict[StreamName, int] = field(default_factory=dict[StreamName, int])
    """Event time of each stream's last message: a message that repeats it is a heartbeat, which is ignored for lag."""
    messages: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    stored: Stored = field(default_factory=Stored)  # the outcome, if the transaction commits

    def add(self, topic: str, messages: Sequence[Message]) -> None:
        """Add the messages that a published one holds."""
        if messages:
            self.messages.setdefault(topic, []).extend(messages)
        self.stored.appended += len(messages)
        for message in messages:
            self._note_lag(message)

    def bury(self, letter: Message) -> None:
        """Add a dead letter."""
        self.messages.setdefault(self.dead_letters.name, []).append(letter)
        self.stored.dead += 1
        self.stored.last_reason = (letter.headers or {}).get("reason")

    def encoded(
        self, topics: Mapping[str, Topic], most_at_once: int, *, times_given: bool = False
    ) -> list[tuple[Storage, Entry]]:
        """Encode everything, each entry with its topic.

        Parameters
        ----------
        most_at_once
            Maximum bytes of an entry.
        times_given
            Whether the limits of the topics apply to publish times, because these come from outside.
        """
        known = {**topics, self.dead_letters.name: self.dead_letters}
        entries: list[tuple[Storage, Entry]] = []
        for name, messages in self.messages.items():
            storage = known[name].storage
            limit = storage.ahead_limit() if times_given else None
            entries += [(storage, entry) for entry in encode_in_pieces(messages, self.received, most_at_once, limit)]
        rejected = sum(len(entry.rejected) for _, entry in entries)
        self.stored.rejected += rejected
        self.stored.appended -= rejected
        return [(storage, entry) for storage, entry in entries if entry.messages]

    def _note_lag(self, message: Message) -> None:
        name = message.source, message.stream
        if message.event_time == self.latest.get(name):
            return
        if name not in self.latest and len(self.latest) >= MOST_STREAMS:
            self.latest.clear()
        self.latest[name] = message.event_time
        lag = (self.received if message.receive_time is None else message.receive_time) - message.event_time
        lags = self.stored.lags
        largest, smallest = lags.get(name, (lag, lag))
        lags[name] = LagRange(max(lag, largest), min(lag, smallest))
