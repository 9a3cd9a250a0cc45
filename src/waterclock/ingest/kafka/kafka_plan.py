"""Builds the plan of an ingest from Kafka from its URL and options: cluster, topics, range and connection settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from waterclock._support.quoting import quoted
from waterclock._support.urls import shown
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.kafka.record import KafkaRule
from waterclock.ingest.storing.dead_letters import check_dead_letters
from waterclock.time import format_time, to_time
from waterclock.topics.topic import Topic

_LOST = ("stop", "skip")

_URL = re.compile(r"kafka://([^/@?#]+)/?")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(:[0-9]{1,5})?")
_PORT = 9092
_MOST_PORT = 65_535
"""librdkafka would take the lower 16 bits of a larger one."""

OURS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "metadata.broker.list",
        "partition.assignment.strategy",
    }
)
"""Properties on which exactly-once appends depend."""


@dataclass(frozen=True)
class KafkaCluster:
    """A cluster and how to connect to it."""

    servers: str  # its bootstrap servers: HOST:PORT, separated by commas
    group: str | None = None  # members of the group share the partitions; None: this process takes all of them
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Further properties for librdkafka, such as ``security.protocol``."""

    @classmethod
    def checked(cls, url: str, group: str | None = None, properties: Mapping[str, str] | None = None) -> KafkaCluster:
        """Check a URL and options.

        Raises
        ------
        InvalidArgumentError
            Naming the option and the value; never a password.
        """
        found = _URL.fullmatch(url)
        servers = found[1].split(",") if found else []
        if not servers or not all(map(_is_server, servers)):
            raise InvalidArgumentError(
                f"url must be kafka://HOST or kafka://HOST,HOST, and each HOST may end in :PORT, got {shown(url)!r}"
            )
        if group == "":
            raise InvalidArgumentError("group must not be empty. To read all partitions, omit group")
        if ours := sorted(OURS & set(properties or {})):
            raise InvalidArgumentError(f"property {ours[0]} must be omitted, because waterclock sets it")
        written = [each if re.search(r":[0-9]+$", each) else f"{each}:{_PORT}" for each in servers]
        return cls(",".join(written), group, dict(properties or {}))


@dataclass(frozen=True)
class KafkaPlan:
    """The plan of an ingest from Kafka."""

    cluster: KafkaCluster  # source of the records
    rules: tuple[KafkaRule, ...]  # the Kafka topics, with their mappings
    dead_letters: str  # the topic of messages that cannot be mapped
    most_payload: int  # maximum bytes of a value
    start: Literal["earliest", "latest"] | int = "earliest"
    """The beginning of a partition that was never appended: ``earliest``, ``latest``, or a time, ns."""
    until: int | None = None  # each partition ends at its first record of this time or a later one, ns; None: never
    lost: str = "stop"  # whether a partition whose next records are gone from the broker stops, or skips them

    def __post_init__(self) -> None:
        names = [rule.kafka_topic for rule in self.rules]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise InvalidArgumentError(f"kafka_topic {quoted(twice)} occurs twice")
        check_dead_letters(self.dead_letters, [rule.rule.topic for rule in self.rules])
        if self.lost not in _LOST:
            raise InvalidArgumentError(f"'lost' must be stop or skip, got {quoted(self.lost)}")
        if self.until is not None and isinstance(self.start, int) and self.until <= self.start:
            raise InvalidArgumentError(
                f"'until' must be later than 'start' ({format_time(self.start)}), got {format_time(self.until)}"
            )

    def open_topics(self, database: Database) -> dict[str, Topic]:
        """Open the topics that the rules name; NotFoundError if one is missing."""
        return {rule.rule.topic: database.topic(rule.rule.topic) for rule in self.rules}


def parse_start(text: str, now: int) -> Literal["earliest", "latest"] | int:
    """Parse where to begin."""
    if text == "earliest" or text == "latest":  # noqa: PLR1714  # the type checker follows this form
        return text
    return to_time(text, "start", now=now)


def _is_server(text: str) -> bool:
    found = _SERVER.fullmatch(text)
    return found is not None and int((found[2] or ":1")[1:]) in range(1, _MOST_PORT + 1)
