"""What is in batches as rows and as arrays, so that SQL can work on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import waterclock as wc
from waterclock.spark import event_time_batches, messages_of, register
from waterclock.spark.streaming.batch_rows import Payloads, found_at
from waterclock.time import MAX_NS
from waterclock.topics.topic import Topic

SECOND = 1_000_000_000
START = 1_782_900_000 * SECOND
RULE = {"window": "500ms", "max_delay": "400ms"}
MEANS = """
    SELECT id, avg(double(string(payload))) AS mean FROM {messages} WHERE stream LIKE 'load%' GROUP BY id
"""
MEANS_OF_ARRAYS = """
    SELECT id, reduce(loads, 0D, (sum, load) -> sum + load, sum -> sum / size(loads)) AS mean FROM (
        SELECT id, transform(filter(messages, m -> m.stream LIKE 'load%'), m -> double(string(m.payload))) AS loads
        FROM {messages}
    ) WHERE size(loads) > 0
"""


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    """Three sealed ledgers, two of which share a file, and an open one; payloads are numbers."""
    with wc.connect(f"sqlite:///{tmp_path_factory.mktemp('messages')}/f.db") as database:
        topic = database.create_topic("telemetry")
        for ledger in range(4):
            for n in range(ledger * 30, ledger * 30 + 30):
                at = START + n * 70_000_000
                sent = [
                    wc.Message(
                        f"press-{k}",
                        f"load-{n % 3}" if n % 4 else "heat",
                        at + k,
                        str(n * 10 + k).encode(),
                        receive_time=at + 5,
                        headers={"n": str(n)},
                    )
                    for k in range(3)
                ]
                topic.append(sent)
            if ledger < 3:
                topic.roll()
                topic.seal()
            if ledger == 1:
                assert topic.compact() == 1
        yield topic


def batches_on(spark: SparkSession, topic: Topic) -> DataFrame:
    options = {"url": str(topic.storage.backend.url), "topic": "telemetry", "packed": True}
    return event_time_batches(spark.read.format("waterclock").options(**options).load(), **RULE)


def in_one_process(topic: Topic) -> list[wc.Batch]:
    batcher = wc.BySource(lambda: wc.EventTimeBatcher(**RULE))
    return [*(batch for m in topic.read() for batch in batcher.add(m)), *batcher.advance(MAX_NS)]


def means(batches: list[wc.Batch]) -> dict[str, float]:
    loads = {b.id: [float(m.payload) for m in b.messages if m.stream.startswith("load")] for b in batches}
    return {name: sum(values) / len(values) for name, values in loads.items() if values}


def test_a_replays_batches_are_rows_and_arrays_with_their_payloads(spark: SparkSession, topic: Topic) -> None:
    expected = in_one_process(topic)
    place = {"payloads": "telemetry", "url": str(topic.storage.backend.url)}
    batches = batches_on(spark, topic).persist()
    arrays = messages_of(batches, **place, as_array=True)
    assert arrays.columns == batches.columns
    found = {row.id: row for row in arrays.collect()}
    assert len(expected) == len(found)
    for batch in expected:
        row = found[batch.id]
        assert (row.source, row.start, row.end, row.reason, row["count"]) == (
            batch.source,
            batch.start,
            batch.end,
            batch.reason,
            len(batch.messages),
        )
        assert [
            (
                m.stream,
                m.event_time,
                m.publish_time,
                m.receive_time,
                m.headers,
                bytes(m.payload),
                (m.ledger, m.entry, m["index"]),
            )
            for m in row.messages
        ] == [
            (m.stream, m.event_time, m.publish_time, m.receive_time, m.headers, m.payload, m.position)
            for m in batch.messages
        ]
    rows = messages_of(batches, **place)
    assert rows.columns[:6] == ["id", "source", "start", "end", "closed_at", "reason"]
    for asked, frame in ((MEANS, rows), (MEANS_OF_ARRAYS, arrays)):
        assert {row.id: row.mean for row in spark.sql(asked, messages=frame).collect()} == pytest.approx(
            means(expected)
        )
    # Without payloads no topic is asked, and what is there of a batch may be less or more than its columns.
    bare = messages_of(batches.selectExpr("source", "streams", "count", "messages", "start AS begin"))
    assert bare.columns == ["source", "begin", "stream", "event_time", "receive_time", "ledger", "entry", "index"]
    assert sorted((row.source, row.begin, row.event_time) for row in bare.collect()) == sorted(
        (b.source, b.start, m.event_time) for b in expected for m in b.messages
    )
    batches.unpersist()


def test_batches_that_arrive_as_a_stream_come_with_their_payloads_too(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    batches = batches_on(spark, topic)
    batches.write.parquet(str(tmp_path / "batches"))
    arriving = spark.readStream.schema(batches.schema).parquet(str(tmp_path / "batches"))
    assert means_of_stream(arriving, topic, tmp_path) == pytest.approx(means(in_one_process(topic)))


@pytest.mark.slow  # 12 s of a processor, most of it for the state of streams
def test_a_streams_batches_come_with_their_payloads_too(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    options = {"url": str(topic.storage.backend.url), "topic": "telemetry", "packed": True}
    arriving = spark.readStream.format("waterclock").options(**options).load()
    found = means_of_stream(event_time_batches(arriving, **RULE), topic, tmp_path)
    expected = means(in_one_process(topic))
    assert found
    assert found == pytest.approx({name: expected[name] for name in found})
    # Only the last second of each source is open still.
    assert len(expected) - 30 < len(found) < len(expected)


def means_of_stream(batches: DataFrame, topic: Topic, folder: Path) -> dict[str, float]:
    arrays = messages_of(batches, payloads="telemetry", url=str(topic.storage.backend.url), as_array=True)
    query = (
        batches.sparkSession.sql(MEANS_OF_ARRAYS, messages=arrays)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "means"))
    )
    query.awaitTermination()
    return {row.id: row.mean for row in batches.sparkSession.read.parquet(str(folder / "means")).collect()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("source", "oven"), ("stream", "heat"), ("event_time", START + 70_000_002), ("source", None)],
)
def test_payloads_of_other_messages_are_refused(topic: Topic, name: str, value: object) -> None:
    rows = topic.read_arrow(limit=9)
    table = pa.Table.from_batches(rows).select(["ledger", "entry", "index", "source", "stream", "event_time"])
    payloads = Payloads(topic)
    assert found_at(payloads, table).column("payload").to_pylist() == [
        str(n * 10 + k).encode() for n in range(3) for k in range(3)
    ]
    # A time that Spark had as a timestamp ends at microseconds.
    micros = table.column("event_time").cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False)
    place = table.column_names.index("event_time")
    assert found_at(payloads, table.set_column(place, "event_time", micros)).num_rows == 9
    changed = table.to_pylist()
    changed[4][name] = value
    with pytest.raises(wc.InvalidArgumentError, match="at 0:1:1 topic 'telemetry' has a message of source"):
        found_at(payloads, pa.Table.from_pylist(changed, table.schema))


def test_invalid_arguments_are_refused(spark: SparkSession, topic: Topic) -> None:
    batches = batches_on(spark, topic)
    url = str(topic.storage.backend.url)
    with pytest.raises(wc.InvalidArgumentError, match="url is missing"):
        messages_of(batches, "telemetry")
    with pytest.raises(wc.InvalidArgumentError, match="payloads is missing"):
        messages_of(batches, url=url)
    with pytest.raises(wc.NotFoundError, match="'other'"):
        messages_of(batches, "other", url=url)
    with pytest.raises(wc.InvalidArgumentError, match="must have a column 'messages'"):
        messages_of(batches.drop("messages"))
    with pytest.raises(wc.InvalidArgumentError, match="column 'count' must be int, got bigint"):
        messages_of(batches.selectExpr("source", "streams", "CAST(count AS BIGINT) AS count", "messages"))
    with pytest.raises(wc.InvalidArgumentError, match=r"'payload' has a name that is reserved for messages. Rename"):
        messages_of(batches.selectExpr("*", "1 AS payload"), "telemetry", url=url)
    plain = spark.sql("SELECT 'press' AS source, 'load' AS stream, 5L AS event_time, 6L AS receive_time")
    with pytest.raises(PySparkException, match="batches must have the position of each message"):
        messages_of(event_time_batches(plain, **RULE), "telemetry", url=url).collect()
    assert messages_of(event_time_batches(plain, **RULE)).select("stream", "ledger").collect() == [("load", None)]
