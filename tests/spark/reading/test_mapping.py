"""DataFrames that name things otherwise, Kafka's among them, are batched as messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
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
    with pytest.raises(wc.InvalidArgumentError, match=r"event_time must be timestamp, or bigint .*, got double"):
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
    with pytest.raises(wc.InvalidArgumentError, match="df must have Kafka's column 'offset', got columns"):
        messages_from_kafka(kafka.drop("offset"))
    messages.unpersist()
    batches.unpersist()


@pytest.fixture
def kafka_record(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(**changes: object) -> DataFrame:
        record = {
            "key": b"press",
            "value": b"17",
            "topic": "loads",
            "partition": 3,
            "offset": 7,
            "timestamp": START,
            "timestampType": 0,
            "headers": [("unit", b"kN")],
        }
        return spark.createDataFrame([tuple({**record, **changes}.values())], KAFKA)

    return make


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"key": b"\xff\x00"}, "has a source that is not UTF-8"),
        ({"key": None}, "has no source"),
        ({"headers": [("trace", b"\xff\x00")]}, "has a header trace that is not UTF-8"),
    ],
)
def test_kafka_record_with_invalid_text_is_named(
    kafka_record: Callable[..., DataFrame], changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(Exception, match=f"record 7 in partition 3 of Kafka topic loads {problem}"):
        messages_from_kafka(kafka_record(**changes)).collect()


def test_kafka_record_without_event_time_is_named(kafka_record: Callable[..., DataFrame]) -> None:
    at = "CAST(CAST(value AS STRING) AS BIGINT)"
    with pytest.raises(Exception, match="record 7 in partition 3 of Kafka topic loads has no event_time"):
        messages_from_kafka(kafka_record(value=None), event_time=at).collect()


def test_binary_key_and_header_of_kafka_are_kept_in_hexadecimal(kafka_record: Callable[..., DataFrame]) -> None:
    record = kafka_record(key=b"\xff\x00", headers=[("trace", b"\xfe"), ("unit", b"kN")])
    (row,) = messages_from_kafka(record, on_binary="hex").collect()
    assert (row.source, row.headers) == ("FF00", {"trace": "FE", "unit": "kN"})


def test_unknown_choice_for_binary_text_of_kafka_is_refused(kafka_record: Callable[..., DataFrame]) -> None:
    with pytest.raises(wc.InvalidArgumentError, match="on_binary must be one of raise, hex, got 'drop'"):
        messages_from_kafka(kafka_record(), on_binary="drop")  # pyright: ignore[reportArgumentType]  # what is tested


@pytest.mark.parametrize("headers", [None, [("unit", b"kN")]])
def test_tombstone_of_kafka_differs_from_an_empty_value(
    kafka_record: Callable[..., DataFrame], headers: list[tuple[str, bytes]] | None
) -> None:
    (row,) = messages_from_kafka(kafka_record(value=None, headers=headers)).collect()
    given = {name: value.decode() for name, value in headers or ()}
    assert (row.payload, row.headers) == (b"", {**given, "waterclock.tombstone": "true"})
    (row,) = messages_from_kafka(kafka_record(value=None).drop("headers")).collect()
    assert row.headers == {"waterclock.tombstone": "true"}
    (row,) = messages_from_kafka(kafka_record(value=b"")).collect()
    assert (row.payload, row.headers) == (b"", {"unit": "kN"})
