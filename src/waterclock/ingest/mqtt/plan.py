"""The plan of an ingest from MQTT."""

from __future__ import annotations

from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.filters import split_share
from waterclock.ingest.mapping.format_rule import FormatRule
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.storing.dead_letters import DEAD_LETTERS, MOST_PAYLOAD, check_dead_letters
from waterclock.topics.topic import Topic


@dataclass(frozen=True)
class IngestPlan:
    """The plan of an ingest."""

    broker: Broker  # source of the messages
    rules: tuple[FormatRule, ...]  # the subscribed filters, with their mappings
    dead_letters: str = DEAD_LETTERS  # the topic of messages that cannot be mapped
    most_payload: int = MOST_PAYLOAD  # maximum bytes of a payload

    def __post_init__(self) -> None:
        unshared = [rule.filter for rule in self.rules if split_share(rule.filter)[0] is None]
        if self.broker.connections > 1 and unshared:
            raise InvalidArgumentError(
                f"connections must be 1, got {self.broker.connections}: the filter {quoted(unshared[0])} is not shared."
                f" To use several connections, write the filter as $share/NAME/{unshared[0]}"
            )
        filters = [rule.filter for rule in self.rules]
        if twice := next((each for each in filters if filters.count(each) > 1), None):
            raise InvalidArgumentError(f"filter {quoted(twice)} occurs twice")
        check_dead_letters(self.dead_letters, [rule.topic for rule in self.rules])

    def open_topics(self, database: Database) -> dict[str, Topic]:
        """Open the topics that the rules name; NotFoundError if one is missing."""
        return {rule.topic: database.topic(rule.topic) for rule in self.rules}
