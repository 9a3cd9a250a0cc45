"""Opening partitions whose brokers do not answer leaves time for those that are read."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.ingest.kafka.conftest import FAST

from waterclock.connection import Database
from waterclock.ingest.kafka import open_partitions
from waterclock.ingest.kafka.alignment import Alignment
from waterclock.ingest.kafka.client import ClusterFacts, TopicFacts
from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan
from waterclock.ingest.kafka.open_partitions import OpenPartitions
from waterclock.ingest.kafka.record import KafkaRule

pytestmark = pytest.mark.one_database


def test_brokers_that_do_not_answer_take_a_sixth_of_the_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [100.0], list[int]()
    monkeypatch.setattr(open_partitions.moments, "monotonic", lambda: now[0])

    class Silent:
        def get_watermark_offsets(self, part: Any, timeout: float) -> None:
            now[0] += timeout
            asked.append(part.partition)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    rule = KafkaRule.checked("plant", "telemetry", "raw")
    plan = KafkaPlan(KafkaCluster.checked("kafka://a", None, FAST), (rule,), "dead", 1 << 20)
    events: list[str] = []
    partitions = OpenPartitions(
        database.backend,
        plan,
        {"telemetry": database.create_topic("telemetry")},
        cast("Any", Silent()),
        Alignment(),
        lambda name, *_, **__: events.append(name),
    )
    partitions.facts = ClusterFacts("cluster", {"plant": TopicFacts("id", range(10))})
    partitions.wish(("plant", number) for number in range(10))
    loops = 0
    while now[0] < 340:
        partitions.open_pending()
        now[0] += 0.02
        loops += 1
    assert set(asked) == set(range(10))
    assert loops * 0.02 > 180
    assert events == ["waits"] * 10
