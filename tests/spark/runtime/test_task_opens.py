"""What the tasks of a read open, counted in this process, and into how many tasks a plan is cut."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from tests.topics.flows import CountedStatements, append_ledgers, bring_to, on_counting_files

import waterclock as wc
from waterclock.message import Position
from waterclock.spark.reading.source import partitions_of, read_part
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.runtime import partitions as parts
from waterclock.spark.runtime.partitions import MOST_CONNECTING, few_connecting
from waterclock.topics.reading import planning, slicing
from waterclock.topics.reading.planning import plan_runs
from waterclock.topics.reading.slicing import Slice, TopicAddress
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.topic import Topic

ADDRESS = TopicAddress("postgresql://user@nowhere.invalid/factory", 1, "t", LedgerFiles("/nowhere"))
"""No task can connect there."""


def slices_of(count: int, *, sealed: bool) -> list[Slice]:
    path = "t/0.parquet" if sealed else None
    return [Slice(ADDRESS, Position(n, 0, 0), Position(n + 1, 0, 0), 10, path) for n in range(count)]


def in_tasks(partitions: list[InputPartition]) -> list[tuple[Slice, ...]]:
    return [cast("tuple[Slice, ...]", partition.value) for partition in partitions]


def opened_topic(tmp_path: Path) -> Topic:
    database = wc.connect(f"sqlite:///{tmp_path}/factory.db", tmp_path / "ledgers")
    return database.create_topic("t", roll_after=None)


def test_a_task_of_sealed_ledgers_opens_their_files_and_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = opened_topic(tmp_path)
    append_ledgers(topic, [[[0, 1]], [[2, 3]], [[4]]])
    topic.roll()
    counted, files = on_counting_files(topic, tmp_path)
    bring_to(counted, "sealed")
    options = TopicReadOptions.checked({"url": ADDRESS.url, "topic": "t", "columns": "publish_time"})
    address = replace(TopicAddress.of(counted.storage), url=ADDRESS.url)
    slices = [part._replace(address=address) for part in counted.plan()]

    def refuse(url: str) -> None:
        raise AssertionError(f"a task connects to {url}")

    monkeypatch.setattr(slicing, "_backend", refuse)
    files.opened.clear()
    read = [batch for partition in partitions_of(slices) for batch in read_part(partition, options)]
    assert sum(batch.num_rows for batch in read) == 5
    # Once for the footer, and once for the columns of its only row group; this filesystem refuses to list folders.
    assert len(slices) == 3
    assert len(files.opened) <= 2 * len(slices)


def test_a_task_of_unsealed_entries_gives_its_connections_back(tmp_path: Path) -> None:
    topic = opened_topic(tmp_path)
    append_ledgers(topic, [[[0, 1]]])
    (part,) = topic.plan()
    options = TopicReadOptions.checked({"url": part.address.url, "topic": "t", "columns": "publish_time"})
    backend = part.address.storage().backend
    closed: list[object] = []
    backend.when_closed(closed.append)
    (partition,) = partitions_of([part])
    assert [batch.num_rows for batch in read_part(partition, options)] == [2]
    assert closed == [backend]


def test_few_tasks_read_what_is_in_the_database() -> None:
    sealed, unsealed = slices_of(3, sealed=True), slices_of(10 * MOST_CONNECTING, sealed=False)
    tasks = in_tasks(partitions_of([*sealed, *unsealed]))
    assert tasks[:3] == [(part,) for part in sealed]
    assert [len(task) for task in tasks[3:]] == [10] * MOST_CONNECTING
    assert [part for task in tasks for part in task] == [*sealed, *unsealed]


def test_large_topics_are_planned_without_a_look_into_each_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MOST_SLICES", 1)
    monkeypatch.setattr(planning, "_LEDGERS_AT_ONCE", 2)
    topic = opened_topic(tmp_path)
    append_ledgers(topic, [[[0, 1], [2, 3]], [[4, 5]], [[6]], [[7]]])
    bring_to(topic, "sealed")
    topic.plan()
    with CountedStatements(topic.storage.backend.engine) as counted:
        assert [part.start.ledger for part in topic.plan(max_messages=1)] == [0, 1, 2, 3]
    # The topic's row, the ledgers two at a time, and the entries of the open one.
    assert len(counted.selects) == 5


def test_a_plan_of_many_files_becomes_tasks_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = opened_topic(tmp_path)
    append_ledgers(topic, [[[2 * n, 2 * n + 1]] for n in range(12)])
    bring_to(topic, "sealed")
    expected = topic.plan()
    monkeypatch.setattr(planning, "MOST_SLICES", 3)
    partitions = partitions_of(plan_runs(topic.storage, Position(1, 0, 1), None, 1000))
    options = TopicReadOptions.checked({"url": expected[0].address.url, "topic": "t", "columns": "publish_time"})
    times = [
        time
        for partition in pickle.loads(pickle.dumps(partitions))  # noqa: S301  # our own
        for batch in read_part(partition, options)
        for time in batch.column("publish_time").to_pylist()
    ]
    assert times == list(range(3, 24))
    assert len(partitions) == 4  # the ledger in which the range begins, and runs of four, four and two
    assert topic.plan() == expected


def test_few_tasks_write_however_many_partitions_there_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST_CONNECTING", 2)
    rows = spark.createDataFrame([(f"press {n}",) for n in range(9)], "source STRING").repartition(7)
    assert few_connecting(rows, "source").rdd.getNumPartitions() == 2
