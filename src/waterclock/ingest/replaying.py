"""Mapping dead letters again, after the mapping was corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.schema.topic_catalogue import subscriptions
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.ingest.ingest import IngestPlan
from waterclock.ingest.mapping.format_rule import RuleSet
from waterclock.ingest.storing.dead_letters import dead_letter, read_dead_letter
from waterclock.message import Message, Position
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import JointAppend

SUBSCRIPTION = "ingest-replay"
"""The subscription of the dead-letter topic that holds how far it was replayed."""

_AT_ONCE = 1_000

_PLACE = ("ledger", "entry", "index", "ordinal")
_FORWARD = (
    sa.update(subscriptions)
    .where(
        subscriptions.c.topic_id == sa.bindparam("topic"),
        subscriptions.c.name == SUBSCRIPTION,
        # The new one as well: the transaction may be repeated after a commit of which no answer came.
        subscriptions.c.ordinal.in_([sa.bindparam("before"), sa.bindparam("after")]),
    )
    .values({name: sa.bindparam(f"new_{name}") for name in _PLACE})
)


@dataclass
class Replayed:
    """The outcome of a replay.

    Attributes
    ----------
    mapped
        Dead letters that could be mapped.
    appended
        Messages that they held.
    failed
        Those that are dead letters again, with the new reason.
    cut
        Those of which only the beginning is kept, so that they cannot be mapped.
    """

    mapped: int = 0
    appended: int = 0
    failed: int = 0
    cut: int = 0


def replay(database: Database, plan: IngestPlan, *, dry_run: bool = False) -> Replayed:
    """Map the dead letters since the last replay, and append those that can be mapped, each once.

    Their receive time is that of the replay. The event time of those that do not say when they happened is when they
    were received first.

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
    work = _Replay(database, letters, topics, RuleSet(plan.rules), dry_run=dry_run)
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
        self, database: Database, letters: Topic, topics: dict[str, Topic], rules: RuleSet, *, dry_run: bool
    ) -> None:
        self.replayed = Replayed()
        self._database = database
        self._letters = letters
        self._topics = {**topics, letters.name: letters}
        self._rules = rules
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
                raise LeaseLostError(f"cannot replay {self._letters.name!r}: another replay runs. Wait until it ends")

        entries = [
            (self._topics[name].storage, encode_entry(messages, lambda: now)) for name, messages in found.items()
        ]
        JointAppend(self._database.backend).commit(entries, advance)

    def _map(self, letter: Message, now: int, found: dict[str, list[Message]]) -> None:
        first_received = now if letter.receive_time is None else letter.receive_time
        try:
            published = read_dead_letter(letter)
        except InvalidArgumentError:
            self.replayed.cut += 1
            return
        try:
            rule = self._rules.find(published.topic)
            messages = rule.map(published, first_received)
        except InvalidArgumentError as error:
            found.setdefault(self._letters.name, []).append(dead_letter(published, str(error), now))
            self.replayed.failed += 1
            return
        found.setdefault(rule.topic, []).extend(_received(message, now) for message in messages)
        self.replayed.mapped += 1
        self.replayed.appended += len(messages)


def _received(message: Message, now: int) -> Message:
    return Message.trusted(
        message.source, message.stream, message.event_time, message.payload, now, now, message.headers, None
    )
