"""What a publisher saw acked is stored once, also if ingest, broker, connection or database end in the middle."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.mqtt.conftest import Publisher, payloads, running
from tests.ingest.mqtt.places import Place
from tests.ingest.running import until
from tests.support.forked import Forked
from tests.support.services import Service

from waterclock.connection import Database
from waterclock.errors import UnavailableError
from waterclock.ingest.mqtt import session
from waterclock.ingest.mqtt.connection import Connection
from waterclock.ingest.recording import read_recording
from waterclock.ingest.storing.received import Received
from waterclock.topics.writing.appending import JointAppend

VERSIONS = ("5", "3.1.1")


@pytest.mark.one_database
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_killed_ingest_stores_each_message_once(
    database: Database, database_url: str, tmp_path: Path, place: Place, publisher: Publisher, version: str, kills: int
) -> None:
    chance = random.Random(version)  # noqa: S311  # a repeatable one
    with running(database, place.plan(version=version)):
        pass  # so that the broker has a session, and keeps what follows
    published: list[bytes] = []

    def drain() -> None:
        with running(database, place.plan(version=version)):
            until(lambda: len(set(payloads(database))) == len(published))

    for number in range(kills):
        some = [b"%d-%d" % (number, each) for each in range(chance.randint(1, 40))]
        publisher.publish(place.topic(), *some)
        published += some
        arguments = (database_url, tmp_path / "ledgers", place.url, place.name, version)
        with Forked("tests.ingest.mqtt.dying_ingest", *arguments, chance.choice(["before", "after"]), 1) as killed:
            assert killed.wait() == -9
        if number % 20 == 19:  # before more wait than the 1,000 that Mosquitto queues for a client
            drain()
    drain()
    assert sorted(payloads(database)) == sorted(published)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold appends back until it is set."""
    opened, commit = threading.Event(), JointAppend.commit

    def commit_later(*arguments: Any) -> object:
        assert opened.wait(30)
        return commit(*arguments)

    monkeypatch.setattr(JointAppend, "commit", commit_later)
    return opened


@pytest.mark.one_database
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_restarts_during_an_append_sends_nothing_twice(
    database: Database,
    place: Place,
    publisher: Publisher,
    gate: threading.Event,
    mosquitto_server: Service,
    version: str,
) -> None:
    sent = [b"%d" % each for each in range(30)]
    with running(database, place.plan(version=version)) as own:
        publisher.publish(place.topic(), *sent)
        until(lambda: own.counts.received >= 20)  # in flight
        mosquitto_server.restart()
        until(lambda: own.names().count("subscribed") == 2)
        gate.set()
        until(lambda: own.counts.appended == len(sent))
        until(lambda: own.counts.received == own.counts.appended + own.counts.repeats)
        assert own.counts.repeats >= 20
    assert sorted(payloads(database)) == sorted(sent)
    with running(database, place.plan(version=version)) as own:
        publisher.publish(place.topic(), b"last")
        until(lambda: b"last" in payloads(database))
        assert own.counts.received == 1  # all the others were acked, on the connection that delivered them


@pytest.mark.one_database
@pytest.mark.parametrize(("count", "restarts"), [(1_000, 1), pytest.param(250_000, 5, marks=pytest.mark.slow)])
def test_a_broker_that_is_restarted_under_load_loses_nothing_that_it_acked(
    database: Database, place: Place, publisher: Publisher, mosquitto_server: Service, count: int, restarts: int
) -> None:
    recorded = read_recording()["payload"].to_pylist()[: count + 1]
    sent = [b"%d %s" % (number, recorded[number % len(recorded)]) for number in range(count)]
    at_once = 500  # of which the broker may have to queue all, and its limit is 1,000
    with running(database, place.plan()) as own:
        due = {count * (restart + 1) // (restarts + 1) // at_once * at_once for restart in range(restarts)}
        for first in range(0, count, at_once):
            restarting = threading.Thread(target=mosquitto_server.restart)
            if first in due:
                restarting.start()
            publisher.publish(place.topic(), *sent[first : first + at_once])
            if first in due:
                restarting.join()
            until(lambda: own.counts.appended >= first + at_once)  # noqa: B023  # at once
        until(lambda: database.topic("telemetry").index(database.topic("telemetry").head) >= count)
    stored = Counter(payloads(database))
    assert stored.keys() == set(sent)
    # The publisher sends what it saw no ack for again: at most the 20 that it has in flight, at each restart.
    assert stored.total() - count <= 20 * restarts


@pytest.mark.one_database
@pytest.mark.parametrize(("count", "kills"), [(1_500, 1), pytest.param(250_000, 5, marks=pytest.mark.slow)])
def test_a_broker_that_is_killed_under_load_loses_only_messages_that_it_had_not_sent(
    database: Database,
    place: Place,
    publisher: Publisher,
    gate: threading.Event,
    mosquitto_server: Service,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    kills: int,
) -> None:
    recorded = read_recording()["payload"].to_pylist()[: count + 1]
    published = [b"%d %s" % (number, recorded[number % len(recorded)]) for number in range(count)]
    at_once = 500  # as above
    due = {count * (kill + 1) // (kills + 1) // at_once * at_once for kill in range(kills)}
    delivered: set[bytes] = set()
    deliver = session.BrokerSession._deliver

    def note(own: session.BrokerSession, received: Received) -> bool:
        is_taken = deliver(own, received)
        if is_taken:
            delivered.add(received.published.payload)
        return is_taken

    monkeypatch.setattr(session.BrokerSession, "_deliver", note)
    mosquitto_server.restart()  # it saves its queues 30 minutes later, which would change the counts
    gate.set()
    killed = 0
    with running(database, place.plan(version="3.1.1")) as own:
        for first in range(0, count, at_once):
            some = published[first : first + at_once]
            if first not in due:
                publisher.publish(place.topic(), *some)
                until(lambda: some[-1] in delivered)  # noqa: B023  # at once
                continue
            gate.clear()
            publisher.publish(place.topic(), *some[:300])  # of which the broker sends 20
            killing = threading.Thread(target=mosquitto_server.restart, kwargs={"immediate": True})
            killing.start()
            publisher.publish(place.topic(), *some[300:])
            killing.join()
            gate.set()
            killed += 1
            until(lambda: own.names().count("session_lost") == killed)  # noqa: B023  # at once
            until(lambda: own.names().count("subscribed") == killed + 1)  # noqa: B023  # at once
        publisher.publish(place.topic(), b"last")
        until(lambda: b"last" in delivered)
        until(lambda: own.counts.appended + own.counts.repeats == own.counts.received)
    stored = Counter(payloads(database))
    assert stored.keys() == delivered
    lost = set(published) - stored.keys()
    assert 200 * kills <= len(lost) <= at_once * kills
    # The publisher sends what it saw no ack for again.
    assert stored.total() - len(stored) <= 20 * kills


@pytest.mark.one_database
@pytest.mark.parametrize("version", VERSIONS)
def test_acks_of_a_lost_session_ack_nothing_of_its_successor(
    database: Database, place: Place, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    commit, opened, numbers = JointAppend.commit, threading.Event(), count(1)

    def commit_the_first(*arguments: Any) -> object:
        assert opened.wait(30)
        if next(numbers) > 1:
            raise UnavailableError("away")
        return commit(*arguments)

    plan = place.plan(version=version)
    with monkeypatch.context() as patch, running(database, plan) as own:
        patch.setattr(JointAppend, "commit", commit_the_first)
        publisher.publish(place.topic(), b"old")
        until(lambda: own.counts.received == 1)
        clean = Connection(plan.broker, place.name, "clean", 1, lambda _: True, lambda _: None, is_clean=True)
        clean.open()
        clean.close()
        until(lambda: own.names().count("subscribed") == 2)
        assert "session_lost" in own.names()
        publisher.publish(place.topic(), b"new")  # under the packet id of the old one
        until(lambda: own.counts.received == 2)
        opened.set()
        until(lambda: "database_away" in own.names())
    assert payloads(database) == [b"old"]
    with running(database, plan):
        until(lambda: payloads(database) == [b"old", b"new"])


@pytest.mark.both_servers
def test_nothing_is_lost_while_the_database_is_away(
    database: Database, place: Place, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, is_away = JointAppend.commit, threading.Event()
    is_away.set()

    def fail_after_commit(*arguments: Any) -> object:
        answer = commit(*arguments)
        if is_away.is_set():  # the answer does not arrive
            raise UnavailableError("the connection to the database broke")
        return answer

    monkeypatch.setattr(JointAppend, "commit", fail_after_commit)
    with running(database, place.plan()) as own:
        publisher.publish(place.topic(), *(b"%d" % each for each in range(100)))
        until(lambda: "database_away" in own.names())
        is_away.clear()
        until(lambda: own.counts.appended == 100)
        assert "database_back" in own.names()
        assert own.names().count("connected") == 1
    assert len(payloads(database)) == 100


@pytest.mark.one_database
def test_a_stop_while_the_database_is_away_leaves_messages_to_the_broker(
    database: Database, place: Place, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(JointAppend, "commit", fail)
        with running(database, place.plan()) as own:
            publisher.publish(place.topic(), b"1", b"2")
            until(lambda: "database_away" in own.names())
    assert payloads(database) == []
    with running(database, place.plan()):
        until(lambda: payloads(database) == [b"1", b"2"])


@pytest.mark.slow
@pytest.mark.one_database
def test_pings_continue_while_the_database_is_away(
    connect: Callable[..., Database], place: Place, publisher: Publisher, gate: threading.Event
) -> None:
    database = connect()
    with running(database, place.plan(keepalive="1s")) as own:
        publisher.publish(place.topic(), b"1")
        until(lambda: own.counts.received == 1)
        assert not gate.wait(12)
        gate.set()
        until(lambda: own.counts.appended == 1)
        assert own.names().count("connected") == 1
        assert own.counts.repeats == 0
