"""Appends received messages before any is acked.

One transaction writes mapped messages, dead letters, and the data by which repeats are recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from waterclock.database.backend import Backend
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.ingest.mapping.format_rule import Published, RuleSet
from waterclock.ingest.storing.append_plan import AppendPlan, Stored
from waterclock.ingest.storing.dead_letters import dead_letter, dead_letter_of_large
from waterclock.ingest.storing.evidence import Evidence
from waterclock.ingest.storing.received import Received, content_hash
from waterclock.ingest.storing.session_rows import SessionRow, SessionState
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import JointAppend

MOST_IN_FLIGHT = 1_000
"""How many messages of a session are remembered if the broker decides how many are in flight, as under MQTT 3.1.1: by
default, Mosquitto has 20 and EMQX 32.
"""


@dataclass
class _Session:
    """A session that this process reads."""

    row: SessionRow
    evidence: Evidence
    dropped: int | None
    number: int = 0
    retained: dict[int, int] | None = None


@dataclass
class _UncertainAppend:
    """An append that may have been committed without an answer."""

    batch: Sequence[Received]
    rules: RuleSet
    topics: Mapping[str, Topic]
    joint: JointAppend


@dataclass
class _SessionPlan(AppendPlan):
    """The writes of one transaction, computed on copies."""

    evidence: dict[str, Evidence] = field(default_factory=dict[str, Evidence])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    retained: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])


class Store:
    """The topics and tables of an ingest. One thread appends."""

    def __init__(
        self,
        backend: Backend,
        rules: RuleSet,  # the mappings of published messages
        topics: Mapping[str, Topic],  # the topics that the rules name
        dead_letters: Topic,  # the topic of messages that cannot be mapped
        most_payload: int,  # bytes that a payload may have
        clock: Callable[[], int] | None = None,  # the database's clock, ns: the receive time of appended messages
    ) -> None:
        self._backend = backend
        self._most_payload = most_payload
        self._dead_letters = dead_letters
        self._clock = clock or backend.now_about
        self._sessions: dict[str, _Session] = {}
        self._target = rules, topics
        self._unanswered: _UncertainAppend | None = None
        self._most_at_once = backend.largest_value // 2

    def use(self, rules: RuleSet, topics: Mapping[str, Topic]) -> None:
        """Map with other rules from the next append on. Safe from any thread."""
        self._target = rules, topics

    def open_session(self, name: str, most_in_flight: int = MOST_IN_FLIGHT) -> tuple[SessionRow, SessionState]:
        """Take a session, so that its messages can be appended."""
        row, state = SessionRow.take(self._backend, name)
        self._sessions[name] = _Session(row, Evidence.unpack(state.unacked, most_in_flight), state.dropped)
        return row, state

    def note_dropped(self, session: str, dropped: int) -> None:
        """Note how many messages the broker reports as dropped; the next append writes it."""
        self._sessions[session].dropped = dropped

    def touch_sessions(self, now: int) -> None:
        """Record that this process uses its sessions, in case no append did so for a while."""
        for session in self._sessions.values():
            session.row.touch(now)

    def append(self, batch: Sequence[Received]) -> Stored:
        """Append some messages, which may be acked when this returns.

        Raises `SessionTakenError` if another process has taken the session; nothing was written. Raises
        `UnavailableError` if the database is unavailable. Whether it committed is unknown; call it again with the same
        batch, before any other.
        """
        attempt = self._unanswered
        if attempt is None or attempt.batch is not batch:
            attempt = _UncertainAppend(batch, *self._target, JointAppend(self._backend))
        self._unanswered = None
        plan = _SessionPlan(self._clock(), self._dead_letters)
        for received in batch:
            self._plan_one(plan, attempt.rules, received)
        if plan.messages:
            try:
                self._write(plan, attempt)
            except UnavailableError:
                self._unanswered = attempt
                raise
        for name, evidence in plan.evidence.items():
            session = self._sessions[name]
            session.evidence, session.number = evidence, plan.numbers[name]
            if session.retained is not None:
                session.retained.update(plan.retained.get(name, {}))
        return plan.stored

    def _plan_one(self, plan: _SessionPlan, rules: RuleSet, received: Received) -> None:
        session = self._sessions[received.origin.session]
        name = session.row.name
        if name not in plan.evidence:
            plan.evidence[name], plan.numbers[name] = session.evidence.copy(), session.number
        evidence = plan.evidence[name]
        if received.origin.number > plan.numbers[name]:
            plan.numbers[name] = received.origin.number
            if not received.origin.session_present:
                evidence.clear()
        if evidence.holds(received):
            plan.stored.repeats += 1
            return
        if received.published.is_retained and not self._wants_retained(plan, session, rules, received.published):
            plan.stored.skipped += 1
            return
        if received.qos:
            evidence.note(received)
        self._map(plan, rules, received.published)

    def _map(self, plan: _SessionPlan, rules: RuleSet, published: Published) -> None:
        if len(published.payload) > self._most_payload:
            plan.bury(dead_letter_of_large(published, self._most_payload, plan.received))
            return
        try:
            rule = rules.find(published.topic)
            messages = rule.map(published, plan.received)
        except InvalidArgumentError as error:
            plan.bury(dead_letter(published, str(error), plan.received))
            return
        plan.add(rule.topic, messages)

    def _wants_retained(self, plan: _SessionPlan, session: _Session, rules: RuleSet, published: Published) -> bool:
        try:
            if rules.find(published.topic).retained == "skip":
                return False
        except InvalidArgumentError:
            pass  # becomes a dead letter, and is remembered like the others, to become one only once
        if session.retained is None:
            session.retained = session.row.read_retained()
        topic = _as_int(content_hash(published.topic, b""))
        content = _as_int(content_hash(published.topic, published.payload))
        taken = plan.retained.setdefault(session.row.name, {})
        if taken.get(topic, session.retained.get(topic)) == content:
            return False
        taken[topic] = content
        return True

    def _write(self, plan: _SessionPlan, attempt: _UncertainAppend) -> None:
        def write_sessions(connection: SqlConnection) -> None:
            for name in sorted(plan.evidence):
                session = self._sessions[name]
                session.row.write(connection, plan.evidence[name].pack(), session.dropped, plan.received)
                session.row.note_retained(connection, plan.retained.get(name, {}))

        attempt.joint.commit(plan.encoded(attempt.topics, self._most_at_once), write_sessions)


def _as_int(digest: bytes) -> int:
    return int.from_bytes(digest, signed=True)
