"""A mock cluster, and ingests that run in this process."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.ingest.kafka.mock_cluster import MockCluster
from tests.ingest.running import PATIENCE, Running, until

from waterclock.connection import Database
from waterclock.ingest.kafka import kafka_ingest
from waterclock.ingest.kafka.kafka_ingest import KafkaIngest
from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan
from waterclock.ingest.kafka.record import KafkaRule
from waterclock.ingest.progress import Event

FAST = {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "10",
    "reconnect.backoff.ms": "10",
    "reconnect.backoff.max.ms": "50",
    "log_level": "0",
    "heartbeat.interval.ms": "50",
    "session.timeout.ms": "1500",  # the mock cluster waits for all members to join again for a second less
}
"""Properties of librdkafka with which a test waits for nothing long."""


@contextmanager
def running(database: Database, plan: KafkaPlan) -> Generator[Running]:
    """Run an ingest until the block ends."""
    database.create_topic("telemetry", exist_ok=True)
    events: list[Event] = []
    ingest = KafkaIngest(database, plan, events.append)

    own = Running(ingest, events)
    try:
        yield own
    except BaseException:
        if own.failure is not None:
            raise own.failure from None  # why what a test waits for does not come
        raise
    finally:
        ingest.stop()
        own.thread.join(PATIENCE)
        assert not own.thread.is_alive()


@dataclass
class Place:
    """A Kafka topic of one test."""

    cluster: MockCluster
    name: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")

    def rule(self, name: str | None = None, **options: Any) -> KafkaRule:
        return KafkaRule.checked(name or self.name, "telemetry", options.pop("format_name", "raw"), **options)

    def plan(self, *rules: KafkaRule, group: str | None = None, **options: Any) -> KafkaPlan:
        cluster = KafkaCluster.checked(f"kafka://{self.cluster.servers}", group, FAST)
        return KafkaPlan(cluster, rules or (self.rule(),), "dead", 1 << 20, **options)

    def send(self, *values: bytes | None, **options: Any) -> None:
        self.cluster.send(self.name, *values, **options)


@pytest.fixture(scope="session")
def mock_cluster() -> Generator[MockCluster]:
    cluster = MockCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def place(mock_cluster: MockCluster) -> Place:
    place = Place(mock_cluster)
    mock_cluster.create(place.name)
    return place


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_ingest, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(kafka_ingest, "_SILENT", 0.005)


def payloads(database: Database, topic: str = "telemetry") -> list[bytes]:
    return [message.payload for message in database.topic(topic).read()]


def until_stored(database: Database, *expected: bytes) -> None:
    until(lambda: payloads(database) == list(expected))
