"""Maps an ingest's dead letters again, after its rules were corrected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.connection import Database
from waterclock.database.schema.topic_catalogue import subscriptions
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.ingest.kafka.kafka_plan import KafkaPlan
from waterclock.ingest.kafka.record import record_of
from waterclock.ingest.mapping.format_rule import RuleSet
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.storing.dead_letters import REASON, clean_reason, read_dead_letter
from waterclock.message import Message, Position
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import JointAppend

SUBSCRIPTION = "ingest-replay"
"""The subscription of the dead-letter topic that stores the progress of replays."""

_AT_ONCE = 1_000

_MapLetter = Callable[[int], tuple[str, list[Message]]]
"""Takes the time when a dead letter was first received; returns the topic and its messages."""

_Mapping = Callable[[Message], _MapLetter]

_PLACE = ("ledger", "entry", "index", "ordinal")
_FORWARD = (
    sa.update(subscriptions)
    .where(
        subscriptions.c.topic_id == sa.bindparam("topic"),
        subscriptions.c.name == SUBSCRIPTION,
        # Including the new one: the transaction may be repeated after a commit whose answer was lost.
        subscriptions.c.ordinal.in_([sa.bindparam("before"), sa.bindparam("after")]),
    )
    .values({name: sa.bindparam(f"new_{name}") for name in _PLACE})
)


@dataclass
class Replayed:
    """The outcome of a replay."""

    mapped: int = 0  # dead letters that could be mapped
    appended: int = 0  # messages that they held
    failed: int = 0  # letters that became dead letters again, with the new reason
    cut: int = 0  # letters that cannot be mapped, because only their beginning is kept


def replay(database: Database, plan: IngestPlan | KafkaPlan, *, dry_run: bool = False) -> Replayed:
    """Map the dead letters since the last replay, and append those that can be mapped, each once.

    Their receive time is that of the replay. Messages without an event time get the time when they were first received.

    Raises
    ------
    NotFoundError
        If the topic does not exist.
    LeaseLostError
        If another replay runs.
    """
    letters = database.topic(plan.dead_letters)
    topics = plan.open_topics(database)
    if not dry_run:
        letters.subscribe(SUBSCRIPTION, start="earliest").close()
    known = {info.name: info.position for info in letters.subscriptions()}
    start, end = known.get(SUBSCRIPTION), letters.head
    work = _Replay(database, letters, topics, _mapping_of(plan), dry_run=dry_run)
    chunk: list[Message] = []
    for letter in letters.read(start, end):
        if len(chunk) == _AT_ONCE and letter.position is not None:
            work.move(chunk, chunk[0].position, letter.position)
            chunk = []
        chunk.append(letter)
    if chunk:
        work.move(chunk, chunk[0].position, end)
    return work.replayed


class _Replay:
    def __init__(
        self, database: Database, letters: Topic, topics: dict[str, Topic], mapping: _Mapping, *, dry_run: bool
    ) -> None:
        self.replayed = Replayed()
        self._database = database
        self._letters = letters
        self._topics = {**topics, letters.name: letters}
        self._mapping = mapping
        self._dry_run = dry_run

    def move(self, chunk: Sequence[Message], start: Position | None, stop: Position) -> None:
        """Map some letters and append their messages, together with the progress of the replay."""
        now = self._database.backend.now()
        found: dict[str, list[Message]] = {}
        for letter in chunk:
            self._map(letter, now, found)
        if self._dry_run or start is None:
            return
        before, after = self._letters.index(start), self._letters.index(stop)
        values = {
            "topic": self._letters.storage.topic_id,
            "before": before,
            "after": after,
            "new_ledger": stop.ledger,
            "new_entry": stop.entry,
            "new_index": stop.index,
            "new_ordinal": after,
        }

        def advance(connection: SqlConnection) -> None:
            if connection.execute(_FORWARD, values).rowcount != 1:
                raise LeaseLostError(
                    f"cannot replay {self._letters.name!r}: another replay is running. Wait until it ends"
                )

        entries = [
            (self._topics[name].storage, encode_entry(messages, lambda: now)) for name, messages in found.items()
        ]
        JointAppend(self._database.backend).commit(entries, advance)

    def _map(self, letter: Message, now: int, found: dict[str, list[Message]]) -> None:
        first_received = now if letter.receive_time is None else letter.receive_time
        try:
            map_letter = self._mapping(letter)
        except InvalidArgumentError:
            self.replayed.cut += 1
            return
        try:
            topic, messages = map_letter(first_received)
        except InvalidArgumentError as error:
            found.setdefault(self._letters.name, []).append(_buried_again(letter, str(error), now))
            self.replayed.failed += 1
            return
        found.setdefault(topic, []).extend(_received(message, first_received, now) for message in messages)
        self.replayed.mapped += 1
        self.replayed.appended += len(messages)


def _mapping_of(plan: IngestPlan | KafkaPlan) -> _Mapping:
    if isinstance(plan, KafkaPlan):
        by_name = {rule.kafka_topic: rule for rule in plan.rules}

        def of_kafka(letter: Message) -> _MapLetter:
            record = record_of(letter)

            def map_record(received: int) -> tuple[str, list[Message]]:
                if record.topic not in by_name:
                    raise InvalidArgumentError(f"no rule of the file reads Kafka topic {quoted(record.topic)}")
                rule = by_name[record.topic]
                return rule.rule.topic, rule.map(record, received)

            return map_record

        return of_kafka
    rules = RuleSet(plan.rules)

    def of_mqtt(letter: Message) -> _MapLetter:
        published = read_dead_letter(letter)

        def map_published(received: int) -> tuple[str, list[Message]]:
            rule = rules.find(published.topic)
            return rule.topic, rule.map(published, received)

        return map_published

    return of_mqtt


def _buried_again(letter: Message, reason: str, now: int) -> Message:
    headers = {**(letter.headers or {}), REASON: clean_reason(reason)}
    return Message.trusted(letter.source, letter.stream, now, letter.payload, now, now, headers, None)


def _received(message: Message, first_received: int, now: int) -> Message:
    """Return a message as received now; keep its publish time if that was not the time of its receipt."""
    published = now if message.publish_time == first_received else message.publish_time
    return Message.trusted(
        message.source, message.stream, message.event_time, message.payload, published, now, message.headers, None
    )
