"""Appends of records, without a cluster: each record once, whatever ends the process."""

from __future__ import annotations

import pytest
from tests.ingest.kafka.conftest import payloads
from tests.support.killed import killed_after_each_change

from waterclock.connection import Database
from waterclock.ingest.kafka.kafka_store import KafkaStore
from waterclock.ingest.kafka.partition import Arrived, Partition
from waterclock.ingest.kafka.record import KafkaRule, Record
from waterclock.ingest.storing.partition_rows import PartitionKey, PartitionRow

RECORDS = {
    0: [b"1", b"no json", b"2", None, b"3"],
    1: [b"4", b"5", b"", b"6"],
}


def taken(database: Database, topic_id: int) -> list[Partition]:
    rule = KafkaRule.checked("plant", "telemetry", "json")
    partitions: list[Partition] = []
    for number in RECORDS:
        key = PartitionKey(topic_id, "cluster", "topic id", number)
        row, offset = PartitionRow.take(database.backend, key, "plant", 0)
        partitions.append(Partition(("plant", number), row, rule, offset, offset))
    return partitions


@pytest.mark.both_servers
def test_records_are_appended_once_if_the_process_is_killed_at_each_statement(database: Database) -> None:
    topic = database.create_topic("telemetry")
    dead = database.create_topic("dead")

    def append_all() -> None:
        store = KafkaStore(database.backend, {"telemetry": topic}, dead, 1_000)
        partitions = taken(database, topic.storage.topic_id)
        for offset in range(5):
            store.append(
                [
                    Arrived(partition, Record("plant", partition.place[1], offset, values[offset], b"press"))
                    for partition, values in zip(partitions, RECORDS.values(), strict=True)
                    if partition.next <= offset < len(values)
                ]
            )

    _, deaths = killed_after_each_change(append_all)
    assert deaths > 1
    assert sorted(payloads(database)) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert sorted(payloads(database, "dead")) == [b"", b"no json"]


def test_of_a_batch_only_the_partitions_that_were_not_taken_are_appended(database: Database) -> None:
    topic = database.create_topic("telemetry")
    store = KafkaStore(database.backend, {"telemetry": topic}, database.create_topic("dead"), 1_000)
    partitions = taken(database, topic.storage.topic_id)
    PartitionRow.take(database.backend, partitions[1].row.key, "plant", 0)
    stored = store.append([Arrived(each, Record("plant", each.place[1], 0, b"7", b"press")) for each in partitions])
    assert (stored.appended, [each.is_lost for each in partitions]) == (1, [False, True])
    assert payloads(database) == [b"7"]
