"""What a task looks up or gathers at once is bounded by bytes; what is too large is named."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.pipeline.pipeline_files import read, write

import waterclock as wc
from waterclock.batching.batch import Batch
from waterclock.columnar.packing import ROWS, unpack
from waterclock.columnar.records import POSITIONED, cells_of_records
from waterclock.spark import pace
from waterclock.spark.pipeline import outputs
from waterclock.spark.pipeline.definition import PipelineSource
from waterclock.spark.streaming import batch_rows
from waterclock.spark.streaming.batch_rows import Payloads, encoded, looks
from waterclock.spark.writing import message_writer
from waterclock.spark.writing.batch_writer import BatchWriter
from waterclock.spark.writing.message_writer import MessageWriter
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.topics.finding.looking_up import look_up
from waterclock.topics.store import sealed_file
from waterclock.topics.store.sealed_file import SealedFile
from waterclock.topics.topic import Topic

SIZES = [1, 1, 1, 1, 9_000, 9_000, 9_000, 1]
FACTS = {"start": 1, "end": 2, "closed_at": 3}


@pytest.fixture
def payloads(tmp_path: Path) -> Iterator[Payloads]:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        for n, size in enumerate(SIZES):
            topic.append([wc.Message("press", "load", n + 1, bytes(size), receive_time=n + 1)])
        yield Payloads(topic)


def a_batch_each(payloads: Payloads) -> pa.RecordBatch:
    """Return a batch for each message of the topic."""
    messages = list(payloads.topic.read())
    records = np.zeros(len(messages), POSITIONED)
    for record, message in zip(records, messages, strict=True):
        assert message.position is not None
        record["event_time"] = record["receive_time"] = message.event_time
        record["ledger"], record["entry"], record["index"] = message.position
    count = len(messages)
    columns = {
        "source": ["press"] * count,
        "streams": [["load"]] * count,
        "count": pa.array([1] * count, pa.int32()),
        "messages": cells_of_records(records, np.arange(count + 1)),
    }
    rows = pa.record_batch(columns, ROWS)
    for name, value in FACTS.items():
        rows = rows.append_column(name, pa.array([value] * count))
    for name in ("number", "run"):
        rows = rows.append_column(name, pa.nulls(count, pa.int64()))
    return rows.append_column("reason", pa.array(["timeout"] * count))


def test_a_look_that_brings_too_many_bytes_is_halved(payloads: Payloads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "MOST_BYTES", 10_000)
    found = [messages.column("payload") for _, messages in looks(iter([a_batch_each(payloads)]), payloads)]
    assert [len(payload) for payload in found] == [4, 1, 1, 2]
    assert [len(value.as_py()) for payload in found for value in payload] == SIZES


def test_large_messages_are_looked_up_about_once_each(payloads: Payloads, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(24):
        payloads.topic.append([wc.Message("press", "load", 100 + n, bytes(100_000), receive_time=100 + n)])
    looked_up: list[int] = []

    def noting(*arguments: Any) -> pa.Table:
        looked_up.append(len(arguments[1]))
        return look_up(*arguments)

    monkeypatch.setattr(batch_rows, "look_up", noting)
    monkeypatch.setattr(batch_rows, "MOST_BYTES", 200_000)
    monkeypatch.setattr(pace, "BYTES_AT_ONCE", 100_000)
    assert sum(rows.num_rows for rows, _ in looks(iter([a_batch_each(payloads)]), payloads)) == 32
    assert len(looked_up) == 1 + 32


def test_batches_have_the_same_bytes_however_they_are_looked_up(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [Batch("press", 1, 2, 3, "timeout", (message,)).to_bytes() for message in payloads.topic.read()]
    for most in (1, 10_000, 1_000_000):
        monkeypatch.setattr(batch_rows, "MOST_BYTES", most)
        written = [each for _, some in encoded(iter([a_batch_each(payloads)]), payloads) for each in some.to_pylist()]
        assert written == expected


def test_a_row_group_of_a_parquet_output_is_bounded_by_bytes_however_few_rows_it_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(outputs.PARQUET_OPTIONS, "parquet.block.size", str(64 << 10))
    rows = spark.createDataFrame([(os.urandom(20_000),) for _ in range(20)], "payload BINARY").coalesce(1)
    outputs.write_parquet(
        rows,
        read(write(tmp_path)).source,
        f"{tmp_path}/batches/run=1",
        what="rejected",
        repeats=False,
        check=lambda: None,
    )
    (file,) = (pq.ParquetFile(path).metadata for path in tmp_path.glob("batches/run=1/*.parquet"))
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 20
    assert all(group.total_byte_size <= (64 << 10) + 21_000 for group in groups)
    assert not any(group.column(0).is_stats_set for group in groups)


@pytest.fixture(params=["own files", "a shared file"])
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """Yield a topic of four sealed ledgers with several row groups; tasks look up ten messages at once."""
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 16)
    monkeypatch.setattr(pace, "MESSAGES_AT_ONCE", 10)
    monkeypatch.setattr(batch_rows, "FIRST_LOOK", 10)
    monkeypatch.setattr(message_writer, "ENTRY_MESSAGES", 10)
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("rejected")
        topic = database.create_topic("telemetry")
        first = 1
        for count in (64, 64, 4, 4):
            times = range(first, first + count)
            topic.append([wc.Message("press", "load", n, bytes(n), receive_time=n) for n in times])
            topic.roll()
            topic.seal()
            first += count
        if request.param == "a shared file":
            assert topic.compact() == 3
        yield topic


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of each row group that is decoded is appended."""
    groups: list[int] = []
    read = SealedFile.read

    def noting(file: SealedFile, group: int, columns: Collection[str]) -> pa.Table:
        groups.append(group)
        return read(file, group, columns)

    monkeypatch.setattr(SealedFile, "read", noting)
    return groups


def row_groups_of(topic: Topic) -> int:
    return sum(pq.ParquetFile(file).num_row_groups for file in {info.file for info in topic.ledgers() if info.file})


def reject(topic: Topic, batches: pa.RecordBatch) -> list[wc.Message]:
    """Write messages to the topic "rejected" as a pipeline writes rejected ones, and return what is there."""
    url = str(topic.storage.backend.url)
    numbers, columns = unpack(batches)
    sources = pa.array(["press"] * len(numbers))
    rows = pa.record_batch({"source": sources, "reason": pa.array(["late"] * len(numbers)), **columns})
    options = WriteOptions.checked({"url": url, "topic": "rejected", "payloads": topic.name})
    MessageWriter(options, "rejected", streaming=False).write(iter([rows]))
    with wc.connect(url) as database:
        return list(database.topic("rejected").read())


def test_a_task_that_writes_batches_decodes_each_row_group_once(sealed: Topic, decoded: list[int]) -> None:
    rows = a_batch_each(Payloads(sealed))
    decoded.clear()
    written = [each for _, some in encoded(iter([rows]), Payloads(sealed)) for each in some.to_pylist()]
    assert len(written) == 136
    assert len(decoded) == row_groups_of(sealed)


def test_a_task_that_writes_rejected_messages_decodes_each_row_group_once(sealed: Topic, decoded: list[int]) -> None:
    rows = a_batch_each(Payloads(sealed))
    decoded.clear()
    assert [len(message.payload) for message in reject(sealed, rows)] == list(range(1, 137))
    assert len(decoded) == row_groups_of(sealed)


def test_a_task_puts_batches_in_order_of_source_and_those_of_a_source_as_they_come(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/f.db"
    with wc.connect(url) as database:
        table = database.create_table("batches", id_type="text")
        ids = ["b@9", "a@1", "b@10", "a@2", "b@8"]
        rows = pa.record_batch({"id": ids, "source": [name[0] for name in ids], "payload": [b"batch"] * len(ids)})
        options = WriteOptions.checked({"url": url, "table": "batches"})
        BatchWriter(options, "batches", is_written=True).write(iter([rows]))
        assert [delivery.id for delivery in table.receive(10)] == ["a@1", "a@2", "b@9", "b@10", "b@8"]


def test_large_rejected_messages_are_appended_fewer_at_a_time(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_writer, "MOST_BYTES", 10_000)
    with wc.connect(str(payloads.topic.storage.backend.url)) as database:
        database.create_topic("rejected")
    written = reject(payloads.topic, a_batch_each(payloads))
    assert [len(message.payload) for message in written] == SIZES
    assert [message.position.entry for message in written if message.position] == [0, 0, 0, 0, 1, 2, 3, 3]


def test_a_batch_that_exceeds_memory_is_named_with_its_topic_position_and_size(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> pa.Table:
        raise MemoryError("malloc of size 9000 failed")

    monkeypatch.setattr(batch_rows, "look_up", exhausted)
    named = r"source 'press', whose first message is at 0:0:0 of topic 'telemetry': its 1 messages .*size 9000 failed"
    with pytest.raises(wc.UnavailableError, match=named):
        list(looks(iter([a_batch_each(payloads)]), payloads))


def test_a_batch_that_exceeds_the_memory_of_java_is_named_with_its_topic_position_and_size(payloads: Payloads) -> None:
    payloads.topic.append([wc.Message("press", "load", 100, os.urandom(9_000), receive_time=100)])
    source = PipelineSource(str(payloads.topic.storage.backend.url), None, "telemetry", {}, None)
    batches = a_batch_each(payloads)
    batches = batches.append_column("id", pa.array([str(n) for n in range(batches.num_rows)]))
    batches = batches.append_column("outside", pa.array([0] * batches.num_rows))
    assert sum(rows.num_rows for rows in outputs._encode(iter([batches]), source, heap=80_000)) == len(SIZES) + 1
    named = (
        r"source 'press', whose first message is at 0:8:0 of topic 'telemetry': its 1 messages exceed Java's memory of"
        r" 40,000 bytes: they have 1\d,\d{3} bytes, .* spark\.driver\.memory"
    )
    with pytest.raises(wc.UnavailableError, match=named):
        list(outputs._encode(iter([batches]), source, heap=40_000))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"microBatch": "7"}, "'microBatch' needs the option 'producer'"),
        ({"producer": "p", "microBatch": "-1"}, "must be an integer ≥ 0 of at most 9 digits, got '-1'"),
        ({"producer": "p", "microBatch": "4000000000"}, "of at most 9 digits, got '4000000000'"),
    ],
)
def test_the_number_of_a_write_that_no_producer_can_count_is_refused(
    payloads: Payloads, options: dict[str, str], complaint: str
) -> None:
    topic = payloads.topic
    with pytest.raises(wc.InvalidArgumentError, match=complaint):
        WriteOptions.checked({"url": str(topic.storage.backend.url), "topic": topic.name, **options})
