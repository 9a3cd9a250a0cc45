"""An ingest with a real broker: subscriptions, sessions, refusals, dead letters."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from tests.ingest.mqtt.conftest import Publisher, payloads, running
from tests.ingest.mqtt.places import Place
from tests.ingest.running import until

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.ingest.ingest import Ingest
from waterclock.ingest.mqtt.connection import Connection, RefusedByBrokerError
from waterclock.ingest.mqtt.session import BrokerSession
from waterclock.ingest.storing import session_rows
from waterclock.ingest.storing.session_rows import SessionTakenError

pytestmark = pytest.mark.one_database


def test_published_messages_are_appended_in_order(database: Database, place: Place, publisher: Publisher) -> None:
    with running(database, place.plan()) as own:
        publisher.publish(place.topic("press/temp/1"), *(b"%d" % each for each in range(2_000)))
        until(lambda: own.counts.appended == 2_000)
        assert own.counts.unprotected == 0
        assert own.counts.appends < 1_000  # many in one transaction, also on a slow machine
    messages = list(database.topic("telemetry").read())
    assert [message.payload for message in messages] == [b"%d" % each for each in range(2_000)]
    assert {(message.source, message.stream) for message in messages} == {("press", "temp/1")}


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_the_broker_keeps_messages_published_after_a_stop(
    database: Database, place: Place, publisher: Publisher, version: str
) -> None:
    plan = place.plan(version=version)
    with running(database, plan):
        pass
    publisher.publish(place.topic(), b"meanwhile")
    with running(database, plan):
        until(lambda: payloads(database) == [b"meanwhile"])


def test_messages_at_qos_0_are_counted_as_unprotected(database: Database, place: Place, publisher: Publisher) -> None:
    with running(database, place.plan(place.rule(qos=0))) as own:
        publisher.publish(place.topic(), b"1")
        until(lambda: own.counts.appended == 1)
        assert own.counts.unprotected == 1


def test_connections_share_a_filter(database: Database, place: Place, publisher: Publisher) -> None:
    rule = place.rule(f"$share/{place.name}/{place.name}/#")
    with running(database, place.plan(rule, connections=3)) as own:
        publisher.publish(place.topic(), *(b"%d" % each for each in range(90)))
        until(lambda: own.counts.appended == 90)
    assert sorted(payloads(database)) == sorted(b"%d" % each for each in range(90))
    with pytest.raises(InvalidArgumentError, match="is not shared"):
        place.plan(connections=2)


def test_a_reload_keeps_the_session_and_drops_filters_that_are_gone(
    database: Database, place: Place, publisher: Publisher
) -> None:
    both = place.rule(f"{place.name}/a/+"), place.rule(f"{place.name}/b/+")
    with running(database, place.plan(*both)) as own:
        own.ingest.reload(lambda: place.plan(both[1]))
        until(lambda: own.names().count("subscribed") == 2)
        publisher.publish(place.topic("a/x"), b"gone")
        publisher.publish(place.topic("b/x"), b"stays")
        until(lambda: own.counts.appended == 1)
        assert own.names().count("connected") == 1

        def fail() -> None:
            raise InvalidArgumentError("line 3: no key named topik")

        own.ingest.reload(fail)  # type: ignore[arg-type]
        until(lambda: "not_reloaded" in own.names())
        publisher.publish(place.topic("b/x"), b"on")
        until(lambda: own.counts.appended == 2)
    assert payloads(database) == [b"stays", b"on"]


def test_a_filter_that_went_while_nothing_ran_is_dropped(
    database: Database, place: Place, publisher: Publisher
) -> None:
    with running(database, place.plan(place.rule(f"{place.name}/a/+"), place.rule(f"{place.name}/b/+"))):
        pass
    with running(database, place.plan(place.rule(f"{place.name}/b/+"))) as own:
        publisher.publish(place.topic("a/x"), b"gone")
        publisher.publish(place.topic("b/x"), b"stays")
        until(lambda: own.counts.appended == 1)
        assert own.counts.dead == 0


def test_more_bad_payloads_than_may_be_in_flight_do_not_stop_the_flow(
    database: Database, place: Place, publisher: Publisher
) -> None:
    rule = replace(place.rule(), format="collectd")
    with running(database, place.plan(rule, receive_maximum=5)) as own:
        publisher.publish(place.topic(), *(b"bad" for _ in range(10)))
        publisher.publish(place.topic(), b"1800000000:1")
        until(lambda: own.counts.appended == 1)
        assert own.counts.dead == 10
        assert "dead_letter" in own.names()
    assert payloads(database, "dead") == [b"bad"] * 10


def test_a_retained_message_is_taken_once_or_skipped(database: Database, place: Place, publisher: Publisher) -> None:
    taking = replace(place.rule(retained="take"), format="collectd")
    publisher.publish(place.topic(), b"1800000000:1", retain=True)
    try:
        with running(database, place.plan()) as own:  # skips
            pass
        for version in ("3.1.1", "5", "3.1.1"):
            with running(database, place.plan(taking, version=version)) as own:
                until(lambda: own.counts.skipped or payloads(database))  # at once
    finally:
        publisher.publish(place.topic(), b"", retain=True)
    assert payloads(database) == [b"1800000000:1"]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_another_client_with_the_client_id_ends_it(database: Database, place: Place, version: str) -> None:
    plan = place.plan(version=version)
    with running(database, plan) as own:
        while own.thread.is_alive():
            made = own.names().count("connected")
            other = Connection(plan.broker, place.name, "other", 1, lambda _: True, lambda _: None)
            other.open()
            until(lambda: own.names().count("connected") > made or not own.thread.is_alive())  # noqa: B023  # at once
            other.close()
            assert made < 10
        with pytest.raises(RefusedByBrokerError, match="another client connects as"):
            own.end()


def test_a_second_ingest_of_a_session_fences_the_first(database: Database, place: Place) -> None:
    plan = place.plan(version="3.1.1")
    with running(database, plan) as first, running(database, plan), pytest.raises(SessionTakenError, match="taken it"):
        first.end()


def test_a_wrong_password_ends_it(database: Database, place: Place) -> None:
    plan = replace(place.plan(), broker=replace(place.plan().broker, password="wrong"))  # noqa: S106
    for version in ("5", "3.1.1"):
        refused = replace(plan, broker=replace(plan.broker, version=version))
        with running(database, refused) as own, pytest.raises(RefusedByBrokerError, match="refused the connection"):
            own.end()
        assert "wrong" not in str(own.failure)


@pytest.mark.parametrize(("granted", "text"), [(0, "granted only QoS 0"), (0x87, "refused the subscription")])
def test_a_refused_or_downgraded_subscription_ends_it(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch, granted: int, text: str
) -> None:
    answer = [ReasonCode(PacketTypes.SUBACK, identifier=granted)]
    monkeypatch.setattr(Connection, "_ask", lambda *_: answer)
    with running(database, place.plan()) as own, pytest.raises(RefusedByBrokerError, match=text):
        own.end()


def test_a_broker_that_is_away_is_tried_again_and_reported_once(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = replace(place.plan(), broker=replace(place.plan().broker, port=1))
    database.create_topic("telemetry")
    events: list[str] = []
    connect, attempts = Connection.open, count(1)

    def connect_thrice(connection: Connection) -> None:
        if next(attempts) == 3:
            ingest.stop()
        connect(connection)

    monkeypatch.setattr(Connection, "open", connect_thrice)
    ingest = Ingest(database, away, lambda event: events.append(event.text))
    ingest.run()
    assert next(attempts) > 3
    [text] = events[:-1]
    assert "Is the broker running?" in text


def test_a_failure_on_the_thread_of_a_connection_ends_it(
    database: Database, place: Place, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = BrokerSession._deliver

    def fail(*_: Any) -> bool:
        raise BrokenPipeError("no one reads the events")

    monkeypatch.setattr(BrokerSession, "_deliver", fail)
    with running(database, place.plan()) as own:
        publisher.publish(place.topic(), b"1", b"2")
        with pytest.raises(BrokenPipeError):
            own.end()
    monkeypatch.setattr(BrokerSession, "_deliver", deliver)
    with running(database, place.plan()):
        until(lambda: payloads(database) == [b"1", b"2"])


def test_a_missing_topic_is_named(database: Database, place: Place) -> None:
    with pytest.raises(NotFoundError, match="telemetry"):
        Ingest(database, place.plan(), lambda _: None)


def test_a_consumer_of_a_share_that_is_gone_is_reported(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    filter_text = f"$share/{place.name}/{place.name}/#"
    row, _ = session_rows.SessionRow.take(database.backend, "gone@broker")
    row.write_filters([filter_text])
    monkeypatch.setattr("waterclock.ingest.ingest._SILENT_AFTER", -60_000_000_000)
    with running(database, place.plan(place.rule(filter_text))) as own:
        until(lambda: "silent_session" in own.names())
        [text] = [event.text for event in own.events if event.facts.get("session") == "gone@broker"]
        assert "has been silent since" in text
