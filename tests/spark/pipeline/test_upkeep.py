"""Upkeep as Spark jobs: many ledgers, files and tables at once; a worker that is killed midway loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.schema.topic_catalogue import entries, files
from waterclock.spark import archive_tables, compact_topic, seal_topic, upkeep
from waterclock.spark.upkeep import _on_topic
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import sealing
from waterclock.topics.upkeep.partial_failure import Done


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return wc.connect(f"sqlite:///{tmp_path / 'factory.db'}")


@pytest.fixture
def topic(database: Database) -> Topic:
    """A topic of six closed ledgers and an open one."""
    topic = database.create_topic("telemetry", roll_after=None)
    for number in range(7):
        topic.append([wc.Message("press", "load", 10 * number + i, publish_time=number) for i in range(3)])
        if number < 6:
            topic.roll()
    return topic


def states(topic: Topic) -> list[str]:
    return [info.state for info in topic.ledgers()]


def test_ledgers_are_sealed_and_compacted_by_many_tasks(spark: SparkSession, topic: Topic) -> None:
    messages = list(topic.read())
    assert seal_topic(spark, topic) == 6
    assert states(topic) == ["sealed"] * 6 + ["open"]
    assert seal_topic(spark, topic) == 0
    sizes = [info.size for info in topic.ledgers()[:6]]
    size = 1 + max(sum(sizes[:3]), sum(sizes[3:]))
    assert compact_topic(spark, topic, file_bytes=size) == 4
    assert len({info.file for info in topic.ledgers() if info.file}) == 2
    assert list(topic.read()) == messages


def test_a_worker_killed_while_it_seals_loses_nothing_and_the_next_call_completes(
    spark: SparkSession, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = list(topic.read())
    monkeypatch.setattr(upkeep, "_on_topic", _killed_once(ledger=2))
    with pytest.raises(Py4JJavaError, match="crashed"):  # an embedded Spark tries each task once
        seal_topic(spark, topic)
    monkeypatch.undo()
    assert list(topic.read()) == messages
    assert states(topic)[2] == "closed"
    _let_leases_end(topic)
    seal_topic(spark, topic)
    assert states(topic) == ["sealed"] * 6 + ["open"]
    assert list(topic.read()) == messages


def test_tasks_continue_where_one_finds_damage_and_the_driver_says_which_ledger_it_is(
    spark: SparkSession, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = sa.update(entries).where(entries.c.ledger == 2).values(data=b"WCA1 and something else")
    topic.storage.backend.transact(lambda connection: connection.execute(damaged))
    with pytest.raises(wc.DamagedError, match=r"ledger 2 of topic 'telemetry' could not be sealed; .*others sealed: 5"):
        seal_topic(spark, topic)
    assert states(topic) == ["sealed", "sealed", "closed", "sealed", "sealed", "sealed", "open"]
    Path(str(topic.ledgers()[4].file)).write_bytes(b"no ledger")
    with pytest.raises(
        wc.DamagedError, match=r"ledger 4 of topic 'telemetry' could not be compacted; .*others compacted: 1"
    ):
        compact_topic(spark, topic)
    left = [message.event_time // 10 for message in topic.read(on_damage="skip")]
    assert left == [number for number in (0, 1, 3, 5, 6) for _ in range(3)]


def _killed_once(ledger: int) -> Callable[..., Done]:
    """Seal, but die with the file of one ledger written and nothing committed."""

    def seal(place: Any, task: Callable[..., Done], number: int) -> Done:
        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        commit = sealing._commit
        sealing._commit = die if number == ledger else commit
        try:
            return _on_topic(place, task, number)
        finally:
            sealing._commit = commit

    return seal


def _let_leases_end(topic: Topic) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(sa.update(files).values(until=0)))


def test_the_shards_of_a_table_are_archived_each_by_a_task(spark: SparkSession, tmp_path: Path) -> None:
    first, second = (wc.connect(f"sqlite:///{tmp_path / name}.db") for name in ("first", "second"))
    topic = first.create_topic("done")
    tables = [
        first.create_table("orders", payload="text", key_range="-80"),
        second.create_table("orders", payload="text", key_range="80-"),
    ]
    for place, table in enumerate(tables):
        for number in range(3):
            table.put(f"{place}.{number}")
        for delivery in table.receive():
            delivery.ack()
    assert archive_tables(spark, tables, topic) == 6
    assert sorted(message.payload for message in topic.read()) == [b"0.0", b"0.1", b"0.2", b"1.0", b"1.1", b"1.2"]
    assert archive_tables(spark, tables, topic) == 0
