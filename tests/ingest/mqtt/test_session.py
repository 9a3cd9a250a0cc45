"""What a session reports that no broker of the tests does at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from waterclock.errors import UnavailableError
from waterclock.ingest.inbox import Inbox
from waterclock.ingest.mapping.format_rule import Published, RuleSet
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.connection import Connection, RefusedByBrokerError
from waterclock.ingest.mqtt.publish_packet import PublishPacket
from waterclock.ingest.mqtt.session import BrokerSession, Surroundings, client_ids
from waterclock.ingest.progress import Event, IngestProgress
from waterclock.ingest.storing.received import Received

BROKER = Broker.checked("mqtt://gateway")


@dataclass
class Row:
    """A session's row without a database."""

    name: str = "me@gateway"


@dataclass
class Parts:
    inbox: Inbox = field(default_factory=Inbox)
    progress: IngestProgress = field(default_factory=IngestProgress)
    events: list[Event] = field(default_factory=list)
    noted: list[tuple[str, int]] = field(default_factory=list)

    def session(self, dropped: int | None = None) -> BrokerSession:
        def note(name: str, count: int) -> None:
            self.noted.append((name, count))

        shared = Surroundings(BROKER, lambda: RuleSet([]), self.inbox, self.progress, self.events.append, note)
        return BrokerSession(shared, cast("Any", Row()), "me", frozenset(), dropped, watches=True)


def test_messages_that_the_broker_dropped_while_nothing_ran_are_reported() -> None:
    parts = Parts()
    session = parts.session(dropped=5)
    for dropped in (12, 12, 3):  # of a broker that was started again, the third
        session._tell_dropped(dropped)
    assert [event.facts["messages"] for event in parts.events] == [7, 3]
    assert parts.progress.broker_dropped == 10
    assert parts.noted[-1] == ("me@gateway", 3)


def test_a_first_count_of_dropped_messages_is_not_our_loss() -> None:
    parts = Parts()
    parts.session()._tell_dropped(1_000)
    assert parts.events == []


def test_without_room_messages_are_left_to_the_broker_or_counted_as_lost() -> None:
    parts = Parts(Inbox(most_waiting=0))
    parts.inbox.put = lambda _: False  # type: ignore[method-assign]
    session = parts.session()
    line = cast("Any", None)
    assert not session._deliver(Received(Published("t", b""), line, 1, 1))
    assert not session._deliver(Received(Published("t", b""), line, 0, 0))
    assert [event.name for event in parts.events] == ["no_room"]
    assert (parts.progress.lost, parts.progress.received) == (1, 0)


def test_after_one_message_without_room_a_connection_delivers_none() -> None:
    # What came after it would be acked before it, and acks go in order.
    taken: list[Received] = []
    answers = iter([True, False, True])

    def deliver(received: Received) -> bool:
        taken.append(received)
        return next(answers)

    connection = Connection(BROKER, "me", "me@gateway", 1, deliver, lambda _: None)

    for number in range(1, 5):
        connection._on_publish(PublishPacket(b"t", b"", number, 1, False, False))
    assert len(taken) == 2
    assert connection.is_overfull


@pytest.mark.parametrize(("code", "text"), [(0x8E, "another client connects as"), (0x98, "ended the connection")])
def test_a_reason_that_would_stay_ends_a_session(code: int, text: str) -> None:
    parts = Parts()
    connection = Connection(BROKER, "me", "me@gateway", 1, lambda _: True, lambda _: None)
    connection._on_disconnect(None, None, None, ReasonCode(PacketTypes.DISCONNECT, identifier=code), None)
    with pytest.raises(RefusedByBrokerError, match=text):
        parts.session()._ended(connection, 60.0)


def test_an_outage_is_reported_once_with_its_attempts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False, False, False, True, False])

    def open_or_fail(connection: Connection) -> None:
        if not next(answers):
            raise UnavailableError("connection refused")
        connection.session_present = True

    monkeypatch.setattr(Connection, "open", open_or_fail)
    parts = Parts()
    session = parts.session()
    opened = [session._connect() is not None for _ in range(6)]
    assert opened == [True, False, False, False, True, False]
    assert [event.name for event in parts.events] == ["connected", "disconnected", "connected", "disconnected"]
    texts = [event.text.partition("kept the session")[2] for event in parts.events if event.name == "connected"]
    assert texts == ["", " after 4 attempts"]


def test_each_connection_has_a_client_id() -> None:
    assert client_ids(BROKER, "x") == ["x"]
    assert client_ids(Broker.checked("mqtt://gateway", client_id="a", connections=2), "x") == ["a-1", "a-2"]
