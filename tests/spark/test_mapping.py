"""DataFrames that name things otherwise, Kafka's among them, are batched as messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import waterclock as wc
from waterclock.spark import as_messages, event_time_batches, messages_from_kafka, messages_of, rate_aware_batches

START = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOON = 1_782_907_200 * 10**9
KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def test_columns_of_other_names_and_timestamps_are_batched(spark: SparkSession) -> None:
    measured = [(7, START + timedelta(microseconds=n * 300_001), 20.0 + n) for n in range(4)]
    frame = spark.createDataFrame(measured, "device INT, at TIMESTAMP, celsius DOUBLE")
    messages = as_messages(
        frame,
        source="device",
        stream="'heat'",
        event_time="at",
        receive_time=F.col("at") + F.expr("INTERVAL 10 MILLISECONDS"),
        payload="CAST(CAST(celsius AS STRING) AS BINARY)",
    )
    assert messages.columns == ["source", "stream", "event_time", "receive_time", "payload"]
    batches = event_time_batches(messages, window="100ms", max_delay="1s")
    assert sorted((row.source, row.start, row["count"]) for row in batches.collect()) == [
        ("7", NOON + n * 300_001_000, 1) for n in range(4)
    ]
    with pytest.raises(wc.InvalidArgumentError, match="event_time is double; it must be bigint"):
        as_messages(frame, source="device", stream="'heat'", event_time="celsius", receive_time="at")


def test_kafkas_columns_are_batched_and_its_values_joined_by_position(spark: SparkSession) -> None:
    records = [
        (
            b"press-%d" % (n % 2),
            b'{"t": %d, "load": %d}' % (NOON // 10**6 + n * 100, n),
            "loads",
            n % 2,
            n // 2,
            START + timedelta(milliseconds=n * 100 + 20),
            0,
            [("unit", b"kN"), ("unit", b"N"), ("none", None)] if n % 3 else None,
        )
        for n in range(8)
    ]
    kafka = spark.createDataFrame(records, KAFKA)
    at = "timestamp_millis(CAST(get_json_object(CAST(value AS STRING), '$.t') AS BIGINT))"
    messages = messages_from_kafka(kafka, event_time=at).persist()
    assert [row.headers for row in messages.orderBy("event_time").limit(2).collect()] == [
        None,
        {"unit": "N", "none": ""},
    ]
    batches = event_time_batches(messages, window="300ms", max_delay="1s").persist()
    joined = messages_of(batches).join(messages.select("ledger", "entry", "payload"), ["ledger", "entry"])
    loads = joined.groupBy("id").agg(
        F.sort_array(F.collect_list(F.get_json_object(F.col("payload").cast("string"), "$.load")))
    )
    assert {tuple(values) for _, values in loads.collect()} == {
        ("0",),
        ("2",),
        ("4",),
        ("6",),
        ("1",),
        ("3",),
        ("5",),
        ("7",),
    }
    assert {row.source for row in batches.collect()} == {"press-0", "press-1"}
    assert rate_aware_batches(messages, batch_length="1s").agg({"count": "sum"}).collect() == [(8,)]
    with pytest.raises(wc.InvalidArgumentError, match="no column 'offset' of Kafka's"):
        messages_from_kafka(kafka.drop("offset"))
    messages.unpersist()
    batches.unpersist()
