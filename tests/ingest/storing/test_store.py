"""Messages, dead letters and evidence are written together or not at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from tests.support.killed import Killed

from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.connection import Database
from waterclock.errors import NotFoundError, UnavailableError
from waterclock.ingest.mapping.format_rule import FormatRule, Published, RuleSet
from waterclock.ingest.storing.dead_letters import KEPT_OF_LARGE, read_dead_letter
from waterclock.ingest.storing.received import Received
from waterclock.ingest.storing.session_rows import SessionTakenError
from waterclock.ingest.storing.store import Store
from waterclock.topics.writing.appending import JointAppend

NOW = 1_800_000_000_000_000_000
SESSION = "gateway@broker:1883"


@dataclass
class Line:
    """A connection without a socket."""

    number: int = 1
    session_present: bool = True
    session: str = SESSION
    acked: list[int] = field(default_factory=list)

    def ack(self, packet_ids: Iterable[int]) -> None:
        self.acked.extend(packet_ids)


def make_store(database: Database, retained: str = "skip", now: Callable[[], int] = lambda: NOW) -> Store:
    topic = database.create_topic("telemetry", exist_ok=True)
    dead = database.create_topic("dead", exist_ok=True)
    rule = FormatRule.checked("plant/#", "telemetry", "json", "plant/{source}/{stream}", retained=retained)
    store = Store(database.backend, RuleSet([rule]), {"telemetry": topic}, dead, 1_000, now)
    store.open_session(SESSION)
    return store


def received(
    packet_id: int, payload: bytes = b"1", line: Line | None = None, topic: str | bytes = "plant/a/b", **flags: bool
) -> Received:
    published = Published(topic, payload, flags.get("retained", False))
    return Received(published, line or Line(), packet_id, 1, flags.get("repeat", False))


def payloads(database: Database, topic: str = "telemetry") -> list[bytes]:
    return [each.payload for each in database.topic(topic).read()]


def test_receive_time_is_the_databases_clock_at_the_append(database: Database) -> None:
    make_store(database).append([received(1)])
    [message] = database.topic("telemetry").read()
    assert (message.receive_time, message.publish_time, message.event_time) == (NOW, NOW, NOW)


def test_a_backlog_is_stored_as_received_when_the_broker_sent_it(database: Database) -> None:
    hour = 3_600_000_000_000
    store = make_store(database, now=lambda: NOW + hour)
    rule = FormatRule.checked("plant/#", "telemetry", "senml", "plant/{source}")
    store.use(RuleSet([rule]), {"telemetry": database.topic("telemetry")})
    store.append([received(1, b'[{"n": "t", "t": %d, "v": 1}]' % (NOW // 10**9), topic="plant/a")])
    [message] = database.topic("telemetry").read()
    assert message.event_time == NOW
    live, replay = EventTimeBatcher(window="1s", max_delay="1m"), EventTimeBatcher(window="1s", max_delay="2h")
    assert live.add(message) + live.flush() == []
    assert [rejection.reason for rejection in live.take_rejected()] == ["late"]
    assert [batch.messages for batch in replay.add(message) + replay.flush()] == [(message,)]


def test_a_repeat_after_a_restart_is_dropped(database: Database) -> None:
    assert make_store(database).append([received(1), received(2, b"2")]).appended == 2
    restarted = make_store(database)
    stored = restarted.append([received(2, b"2", Line(), repeat=True), received(3, b"3")])
    assert (stored.repeats, stored.appended) == (1, 1)
    assert payloads(database) == [b"1", b"2", b"3"]


def test_a_lost_session_ends_the_evidence(database: Database) -> None:
    store = make_store(database)
    store.append([received(1)])
    store.append([received(9, b"9", Line(2, session_present=False))])
    assert store.append([received(1, line=Line(3), repeat=True)]).appended == 1


def test_a_failed_append_is_not_evidence(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(database)

    def fail(*_: object) -> None:
        raise UnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(JointAppend, "commit", fail)
        with pytest.raises(UnavailableError):
            store.append([received(1)])
    assert store.append([received(1, repeat=True)]).appended == 1


@pytest.mark.both_servers
def test_an_append_that_was_committed_without_an_answer_is_not_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(database)
    commit = JointAppend.commit

    def commit_unheard(*arguments: Any) -> None:
        commit(*arguments)
        raise UnavailableError("the connection broke")

    batch = [received(1), received(2, b"no json")]
    with monkeypatch.context() as patch:
        patch.setattr(JointAppend, "commit", commit_unheard)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                store.append(batch)
    stored = store.append(batch)
    assert (stored.appended, stored.dead) == (1, 1)
    assert (payloads(database), payloads(database, "dead")) == ([b"1"], [b"no json"])


def test_one_message_that_maps_to_more_than_an_entry_takes_is_appended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.backend, "largest_value", 2_000)
    store = make_store(database)
    store.use(
        RuleSet([FormatRule.checked("plant/#", "telemetry", "senml", "plant/{source}")]),
        {"telemetry": database.topic("telemetry")},
    )
    records = ",".join(f'{{"n": "n{number}", "t": 1800000000, "v": {number}}}' for number in range(20))
    assert store.append([received(1, f"[{records}]".encode(), topic="plant/a")]).appended == 20
    assert len({message.position.entry for message in database.topic("telemetry").read() if message.position}) > 1


def test_a_dead_letter_that_cannot_be_written_fails_the_append(database: Database) -> None:
    store = make_store(database)
    database.topic("dead").remove()
    with pytest.raises(NotFoundError, match="removed"):
        store.append([received(1), received(2, b"no json")])
    assert payloads(database) == []


def test_a_session_that_was_taken_over_appends_nothing(database: Database) -> None:
    store = make_store(database)
    other = make_store(database)
    with pytest.raises(SessionTakenError, match="another process has taken it over"):
        store.append([received(1)])
    assert payloads(database) == []
    assert other.append([received(1)]).appended == 1


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("plant/a/b", b"{", "payload must be JSON"),
        ("plant/a/b", b"\xff", "UTF-8"),
        (b"plant/\xff", b"1", "topic must be UTF-8"),
        ("other", b"1", "no filter matches"),
        ("plant/a", b"1", "must match the template"),
        ("plant//b", b"1", "must not be empty"),
    ],
)
def test_a_message_that_cannot_be_mapped_becomes_one_dead_letter(
    database: Database, topic: str | bytes, payload: bytes, reason: str
) -> None:
    store = make_store(database)
    assert store.append([received(1, payload, topic=topic), received(2)]).dead == 1
    [letter] = database.topic("dead").read()
    assert reason in (letter.headers or {})["reason"]
    assert read_dead_letter(letter) == Published(topic, payload)
    assert payloads(database) == [b"1"]
    assert store.append([received(1, payload, topic=topic, repeat=True)]).repeats == 1


@pytest.mark.one_database
def test_of_a_payload_above_the_limit_the_beginning_is_kept(database: Database) -> None:
    store = make_store(database)
    store.append([received(1, b"x" * 100_000)])
    [letter] = database.topic("dead").read()
    assert letter.payload == b"x" * KEPT_OF_LARGE
    assert "must have at most 1000 bytes, got 100000" in (letter.headers or {})["reason"]


@pytest.mark.one_database
def test_retained_messages_are_skipped_unless_wanted(database: Database) -> None:
    assert make_store(database).append([received(1, retained=True)]).skipped == 1
    assert payloads(database) == []


def test_ten_subscriptions_take_a_retained_message_once(database: Database) -> None:
    for number in range(10):
        line = Line(number + 1, session_present=False)
        make_store(database, "take").append([received(1, b'"x"', line, retained=True)])
    assert len(payloads(database, "dead")) == 1  # it does not say when it happened
    make_store(database, "take").append([received(2, b'"y"', Line(11), retained=True)])
    assert len(payloads(database, "dead")) == 2


def _run(  # noqa: C901  # one step after the other
    seed: int, database: Database, monkeypatch: pytest.MonkeyPatch
) -> tuple[Counter[bytes], set[bytes], int]:
    """Let a broker of a few lines deliver to processes that are killed before and after their commits.

    Returns
    -------
    tuple
        What was stored, what was published, and how many messages may be there twice.
    """
    chance = random.Random(seed)  # noqa: S311  # a repeatable one
    commit = JointAppend.commit
    queue: list[list[object]] = []  # [packet id, payload, was delivered]
    published: set[bytes] = set()
    allowed = number = 0
    ids = count(1)
    store, line, fresh = make_store(database), Line(0, session_present=False), True
    for step in range(40):
        payload = b"%d" % step
        queue.append([next(ids), payload, False])
        published.add(payload)
        if fresh or chance.random() < 0.2:  # the broker delivers all that is not acked again
            number += 1
            lost = seed % 2 == 1 and chance.random() < 0.2
            if lost:
                allowed += len(queue)
                for entry in queue:  # as new messages, with other ids
                    entry[0], entry[2] = next(ids), False
            line, fresh = Line(number, session_present=not lost), False
        batch = [received(int(str(i)), bytes(p), line, repeat=bool(d)) for i, p, d in queue]  # pyright: ignore[reportArgumentType]
        for entry in queue:
            entry[2] = True
        death = chance.choice(["none", "none", "before", "after", "unacked"])

        def dying(*arguments: Any, death: str = death) -> Sequence[object]:
            if death == "before":
                raise Killed
            answer = commit(*arguments)
            if death == "after":
                raise Killed
            return answer

        monkeypatch.setattr(JointAppend, "commit", dying)
        try:
            store.append(batch)
        except Killed:
            store, fresh = make_store(database), True
            number = 0
            continue
        if death == "unacked":
            fresh = True  # the connection is cut before the acks arrive
            continue
        del queue[: chance.randint(0, len(queue))]
        fresh = fresh or bool(queue)
    monkeypatch.setattr(JointAppend, "commit", commit)
    number += 1
    line = Line(number)
    store.append([received(int(str(i)), bytes(p), line, repeat=bool(d)) for i, p, d in queue])  # pyright: ignore[reportArgumentType]
    return Counter(payloads(database)), published, allowed


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_stored_and_twice_only_without_the_session(
    sqlite_url: str, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stored, published, allowed = _run(seed, connect(sqlite_url), monkeypatch)
    assert set(stored) == published
    assert sum(stored.values()) - len(published) <= allowed
    if not allowed:
        assert max(stored.values()) == 1
