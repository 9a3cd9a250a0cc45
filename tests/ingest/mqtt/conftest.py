"""A real broker, a publisher, and ingests that run in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from tests.ingest.mqtt.places import Place
from tests.ingest.running import PATIENCE, Running, until
from tests.support.services import Service

from waterclock.connection import Database
from waterclock.ingest.ingest import Ingest
from waterclock.ingest.mqtt import session as session_file
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.progress import Event


class Publisher:
    """Publishes at QoS 1, and returns when the broker has acked all of it."""

    def __init__(self, url: str) -> None:
        broker = Broker.checked(url)
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.username_pw_set(broker.username, broker.password)
        self._client.reconnect_delay_set(0.02, 0.02)  # type: ignore[arg-type]  # it is only added to a time
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()

    def publish(self, topic: str, *payloads: bytes, **options: Any) -> None:
        until(self._client.is_connected)  # the broker may have been restarted
        for sent in [self._client.publish(topic, payload, **{"qos": 1, **options}) for payload in payloads]:
            sent.wait_for_publish(PATIENCE)
            assert sent.is_published()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def running(database: Database, plan: IngestPlan) -> Generator[Running]:
    """Run an ingest until the block ends; it has subscribed when the block begins, unless it has failed."""
    database.create_topic("telemetry", exist_ok=True)
    events: list[Event] = []
    ingest = Ingest(database, plan, events.append)

    own = Running(ingest, events)
    try:
        until(lambda: own.names().count("subscribed") >= plan.broker.connections or not own.thread.is_alive())
        yield own
    finally:
        ingest.stop()
        own.thread.join(PATIENCE)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_file, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(session_file, "_LOOK_EVERY", 0.02)


@pytest.fixture
def place(mosquitto_server: Service) -> Place:
    return Place(mosquitto_server.url)


@pytest.fixture
def publisher(mosquitto_server: Service) -> Generator[Publisher]:
    own = Publisher(mosquitto_server.url)
    yield own
    own.close()


def payloads(database: Database, topic: str = "telemetry") -> list[bytes]:
    return [message.payload for message in database.topic(topic).read()]
