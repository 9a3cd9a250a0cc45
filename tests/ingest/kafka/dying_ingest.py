"""An ingest in a process of its own that kills itself in the middle of an append."""

from __future__ import annotations

import os
import signal
from typing import Any

from waterclock import connect
from waterclock._support.small_process import keep_small
from waterclock.ingest.kafka.kafka_ingest import KafkaIngest
from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan
from waterclock.ingest.kafka.record import KafkaRule
from waterclock.topics.writing.appending import JointAppend


def main(database: str, ledgers: str, servers: str, kafka_topic: str, death: str) -> None:
    """Run until the first append is about to commit, or has committed."""
    keep_small()
    commit = JointAppend.commit

    def die_at(*arguments: Any) -> object:
        if death == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    JointAppend.commit = die_at  # type: ignore[method-assign,assignment]
    rule = KafkaRule.checked(kafka_topic, "telemetry", "json")
    plan = KafkaPlan(KafkaCluster.checked(f"kafka://{servers}"), (rule,), "dead", 1 << 20)
    with connect(database, ledgers) as opened:
        KafkaIngest(opened, plan, lambda _: None).run()
