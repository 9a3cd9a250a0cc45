"""The format ``waterclock``: topics are read, batches land in a message table, rejected messages in a topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import waterclock as wc
from waterclock.database.schema import topic_catalogue as catalogue
from waterclock.spark import batches_of, event_time_outcomes, rate_aware_outcomes, register, rejected_of
from waterclock.spark.reading.columns import METADATA_COLUMNS
from waterclock.spark.streaming.batch_rows import LOST_HEADER
from waterclock.spark.writing.message_writer import POSITION_HEADER, REASON_HEADER
from waterclock.time import MAX_NS

SECOND = 1_000_000_000
START = 1_782_900_000 * SECOND
RULE = {"window": "500ms", "max_delay": "400ms"}


def traffic() -> list[wc.Message]:
    """Two sources with conflicts, and one late message; payloads and headers tell the messages apart."""
    messages = [
        wc.Message(
            source,
            f"stream-{i % 3}",
            START + i * 100_000_000,
            f"{source} {i}".encode(),
            publish_time=START + i * 100_000_000 + 1,
            receive_time=START + i * 100_000_000 + 50_000_000,
            headers={"number": str(i)} if i % 2 else None,
        )
        for i in range(40)
        for source in ("press-01", "oven-03")
    ]
    late = wc.Message("press-01", "stream-0", START, b"late", publish_time=START, receive_time=START + 9 * SECOND)
    return [*messages, late]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> wc.Database:
    return filled(tmp_path_factory.mktemp("spark"))


def filled(folder: Path) -> wc.Database:
    """Make a topic with a sealed ledger, a closed one, and an open one."""
    database = wc.connect(f"sqlite:///{folder}/factory.db")
    topic = database.create_topic("telemetry")
    messages = traffic()
    topic.append(messages[:20])
    topic.append(messages[20:30])
    topic.roll()
    topic.seal()
    topic.append(messages[30:50])
    topic.roll()
    topic.append(messages[50:])
    return database


def read(spark: SparkSession, database: wc.Database, **options: Any) -> DataFrame:
    place = {"url": str(database.backend.url), "topic": "telemetry"}
    return spark.read.format("waterclock").options(**{**place, **options}).load()


def metadata(spark: SparkSession, database: wc.Database) -> DataFrame:
    return read(spark, database, columns=",".join(METADATA_COLUMNS))


def test_a_topic_is_read_whole_across_sealed_closed_and_open_ledgers(
    spark: SparkSession, database: wc.Database
) -> None:
    rows = read(spark, database).orderBy("ledger", "entry", "index").collect()
    expected = list(database.topic("telemetry").read())
    assert [bytes(row.payload) for row in rows] == [message.payload for message in expected]
    assert [(row.source, row.stream, row.event_time, row.publish_time, row.receive_time) for row in rows] == [
        (m.source, m.stream, m.event_time, m.publish_time, m.receive_time) for m in expected
    ]
    assert [row.headers for row in rows] == [message.headers for message in expected]
    assert [wc.Position(row.ledger, row.entry, row["index"]) for row in rows] == [m.position for m in expected]


def test_timestamps_stand_next_to_the_exact_times(spark: SparkSession, database: wc.Database) -> None:
    row = read(spark, database, columns="event_time,event_timestamp").selectExpr("*", "unix_micros(event_timestamp) u")
    assert all(found.u == found.event_time // 1000 for found in row.collect())


def test_a_read_begins_and_ends_at_its_bounds(spark: SparkSession, database: wc.Database) -> None:
    begin, end = START + SECOND, START + 3 * SECOND
    expected = sum(begin <= m.publish_time < end for m in traffic() if m.publish_time)
    found = read(spark, database, columns="source", startingTimestamp=begin, endingTimestamp="2026-07-01T10:00:03Z")
    assert found.count() == expected
    assert read(spark, database, columns="source", startingPosition="0:1:3").count() == len(traffic()) - 23


def test_only_the_columns_asked_for_are_read(spark: SparkSession, database: wc.Database) -> None:
    assert read(spark, database, columns="stream, index").columns == ["stream", "index"]


def test_batches_and_rejected_messages_land_exactly_once_and_equal_those_of_one_process(
    spark: SparkSession, database: wc.Database
) -> None:
    batcher = wc.BySource(lambda: wc.EventTimeBatcher(**RULE))
    expected = [batch for m in database.topic("telemetry").read() for batch in batcher.add(m)]
    expected += batcher.advance(MAX_NS)
    table = database.create_table("batches", id_type="text", groups="sequenced")
    database.create_topic("rejected")
    place = {"url": str(database.backend.url), "payloads": "telemetry"}
    outcomes = event_time_outcomes(metadata(spark, database), **RULE).persist()
    for _ in range(2):  # the second time changes nothing
        batches_of(outcomes).write.format("waterclock").options(**place, table="batches").mode("append").save()
    rejected_of(outcomes).write.format("waterclock").options(**place, topic="rejected").mode("append").save()
    outcomes.unpersist()

    landed: dict[Any, bytes] = {}
    while deliveries := table.receive(limit=100):
        for delivery in deliveries:
            with delivery:
                assert delivery.group == wc.Batch.from_bytes(delivery.payload).source
                landed[delivery.id] = delivery.payload
    assert landed == {batch.id: batch.to_bytes() for batch in expected}
    (refused,) = database.topic("rejected").read()
    ((original, reason),) = batcher.take_rejected()
    assert (refused.payload, refused.event_time, refused.receive_time) == (b"late", START, START + 9 * SECOND)
    assert refused.headers == {REASON_HEADER: reason, POSITION_HEADER: str(original.position)}
    assert reason == "late"


def test_batches_of_rows_without_positions_land_without_payloads(spark: SparkSession, database: wc.Database) -> None:
    plain = read(spark, database, columns="source,stream,event_time,receive_time")
    table = database.create_table("bare", id_type="text")
    batches = batches_of(event_time_outcomes(plain, **RULE))
    batches.write.format("waterclock").options(url=str(database.backend.url), table="bare").mode("append").save()
    found = [wc.Batch.from_bytes(delivery.payload) for delivery in table.receive(limit=1000)]
    assert Counter(m.payload for batch in found for m in batch.messages) == {b"": len(traffic()) - 1}


def test_batches_whose_payloads_were_deleted_are_written_without_them_where_that_is_wished(
    spark: SparkSession, tmp_path: Path
) -> None:
    database = filled(tmp_path)
    topic, table = database.topic("telemetry"), database.create_table("batches", id_type="text")
    outcomes = event_time_outcomes(metadata(spark, database), **RULE).persist()
    rows = batches_of(outcomes)
    place = {"url": str(database.backend.url), "table": "batches", "payloads": "telemetry"}
    kept = [message.position for message in topic.read(wc.Position(1, 0, 0))]
    assert outcomes.count()  # only then it is persisted
    topic.truncate(wc.Position(1, 0, 0))
    with pytest.raises(PySparkException, match=r"no message at 0:.* set failOnDataLoss=false for deleted messages"):
        rows.write.format("waterclock").options(**place).mode("append").save()
    rows.write.format("waterclock").options(**place, failOnDataLoss=False).mode("append").save()
    outcomes.unpersist()
    batches = [wc.Batch.from_bytes(delivery.payload) for delivery in table.receive(limit=1000)]
    messages = [message for batch in batches for message in batch.messages]
    assert len(messages) == len(traffic()) - 1
    for message in messages:
        is_lost = message.headers == {LOST_HEADER: "payload"}
        assert (message.position in kept, message.payload != b"", message.publish_time is not None) == (
            not is_lost,
        ) * 3


def test_if_more_may_come_only_batches_that_each_source_closed_itself_are_emitted(
    spark: SparkSession, database: wc.Database
) -> None:
    by_time = wc.BySource(lambda: wc.EventTimeBatcher(**RULE))
    closed = {batch.id for m in database.topic("telemetry").read() for batch in by_time.add(m)}
    frame = metadata(spark, database)
    found = {row.id for row in batches_of(event_time_outcomes(frame, **RULE, ended=False)).select("id").collect()}
    assert found == closed
    assert by_time.advance(MAX_NS)  # there is more, which is open
    rows = batches_of(rate_aware_outcomes(frame, ended=False)).select("id", "reason").collect()
    everything = batches_of(rate_aware_outcomes(frame)).select("id", "reason").collect()
    assert {row.id for row in rows} == {row.id for row in everything if row.reason != "flush"} != set()


def test_batches_of_another_topic_are_not_taken_for_those_that_are_there(spark: SparkSession, tmp_path: Path) -> None:
    database = filled(tmp_path)
    database.create_table("batches", id_type="text")
    other = database.create_topic("other")
    times = ("event_time", "publish_time", "receive_time")
    other.append(
        [
            wc.Message(m.source, m.stream, payload=b"other", **{name: getattr(m, name) for name in times})
            for m in traffic()
        ]
    )
    url = str(database.backend.url)

    def write(window: str, topic: str) -> None:
        messages = read(spark, database, topic=topic, columns=",".join(METADATA_COLUMNS))
        batches = batches_of(event_time_outcomes(messages, window=window, max_delay="400ms"))
        batches.write.format("waterclock").options(url=url, table="batches", payloads=topic).mode("append").save()

    write("500ms", "telemetry")
    write("250ms", "telemetry")  # cut otherwise, as a replay may: what is there stays
    with pytest.raises(
        PySparkException, match=r"to message table 'batches': the table already has a different batch with this id"
    ):
        write("500ms", "other")
    payloads = {
        m.payload
        for d in database.table("batches").receive(limit=1000)
        for m in wc.Batch.from_bytes(d.payload).messages
    }
    assert b"other" not in payloads


def test_a_source_of_any_name_has_ids_and_a_group_that_fit(spark: SparkSession, database: wc.Database) -> None:
    names = ["x" * 234, "x" * 235, "ü😀" * 2_500, "a\0b", "\0" * 300]
    frame = spark.createDataFrame(
        [(name, "s", START, START) for name in names],
        "source STRING, stream STRING, event_time BIGINT, receive_time BIGINT",
    )
    table = database.create_table("long", id_type="text", groups="sequenced")
    batches = batches_of(event_time_outcomes(frame, **RULE))
    batches.write.format("waterclock").options(url=str(database.backend.url), table="long").mode("append").save()
    landed = {delivery.id: delivery for delivery in table.receive(limit=10)}
    found = {name: wc.Batch.from_bytes(delivery.payload) for name, delivery in landed.items()}
    assert sorted(batch.source for batch in found.values()) == sorted(names)
    assert all(batch.id == name and len(name) <= 255 for name, batch in found.items())
    assert f"{names[0]}@{START}" in found
    assert {delivery.group for delivery in landed.values()} == {name.rpartition("@")[0] for name in found}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "nowhere"}, "no topic named 'nowhere'"),
        ({"colums": "source"}, "no option named 'colums'"),
        ({"columns": "sauce"}, "got 'sauce'"),
        ({"startingPosition": "first"}, "position must be ledger:entry:index, for example 3:17:0, got 'first'"),
        ({"startingPosition": "0:0:0", "startingTimestamp": "5"}, "must not both be given"),
        ({"startingTimestamp": "2026-07-01T12:00:00"}, "startingTimestamp must be ISO 8601 with an offset"),
    ],
)
def test_an_invalid_read_is_refused_on_the_driver(
    spark: SparkSession, database: wc.Database, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=r"waterclock\.errors") as refused:
        read(spark, database, **options).count()
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "exactly one of the options table and topic must be given"),
        ({"table": "batches", "topic": "telemetry"}, "exactly one of the options table and topic must be given"),
        ({"table": "nowhere"}, "no message table named 'nowhere'"),
        ({"topic": "telemetry", "tabel": "x"}, "no option named 'tabel'"),
    ],
)
def test_an_invalid_write_is_refused_on_the_driver(
    spark: SparkSession, database: wc.Database, options: dict[str, str], says: str
) -> None:
    rows = read(spark, database, columns="source,stream,event_time")
    with pytest.raises(PySparkException, match=r"waterclock\.errors") as refused:
        rows.write.format("waterclock").options(url=str(database.backend.url), **options).mode("append").save()
    assert says in str(refused.value)


def test_overwriting_and_rows_of_another_shape_are_refused(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    rows = read(spark, database, columns="source")
    other = wc.connect(f"sqlite:///{tmp_path / 'other.db'}")
    other.create_topic("t")
    writer = rows.write.format("waterclock").options(url=str(other.backend.url), topic="t")
    with pytest.raises(PySparkException, match='Use mode "append"'):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match="must have a column 'stream'"):
        writer.mode("append").save()


def test_timestamps_are_written_at_their_moment_and_other_times_are_refused(
    spark: SparkSession, database: wc.Database
) -> None:
    topic = database.create_topic("stamped")
    database.create_table("stamps", id_type="text")
    rows = spark.sql("SELECT 'a' AS source, 'b' AS stream, timestamp_micros(7) AS event_time")

    def write(given: DataFrame, **place: str) -> None:
        given.write.format("waterclock").options(url=str(database.backend.url), **place).mode("append").save()

    write(rows, topic="stamped")
    assert [message.event_time for message in topic.read()] == [7000]
    for kind in ("TIMESTAMP_NTZ", "DOUBLE", "DATE", "STRING"):
        with pytest.raises(PySparkException, match=f"'event_time' must be timestamp, .* got {kind.lower()}"):
            write(rows.withColumn("event_time", rows["event_time"].cast(kind)), topic="stamped")
    batches = batches_of(event_time_outcomes(metadata(spark, database), **RULE))
    with pytest.raises(PySparkException, match="column 'start' must be bigint, got timestamp"):
        write(batches.withColumn("start", batches["start"].cast("TIMESTAMP")), table="stamps")


def producers(database: wc.Database, topic: str) -> list[str]:
    statement = sa.select(catalogue.producers.c.name).where(
        catalogue.producers.c.topic_id == database.topic(topic).storage.topic_id
    )
    with database.backend.snapshot() as connection:
        return list(connection.execute(statement).scalars())


def test_a_write_to_a_topic_leaves_no_producer_behind_unless_it_is_named(
    spark: SparkSession, database: wc.Database
) -> None:
    database.create_topic("copy")
    rows = read(spark, database, columns="source,stream,event_time,publish_time,receive_time,headers,payload")
    writer = rows.write.format("waterclock").mode("append").options(url=str(database.backend.url), topic="copy")
    writer.save()
    assert producers(database, "copy") == []
    for _ in range(2):  # the second time changes nothing, although the rows come without positions to order them by
        writer.option("producer", "copier").save()
    assert all(name.startswith("copier-") for name in producers(database, "copy"))
    copied = Counter(message.payload for message in database.topic("copy").read())
    assert copied == Counter({message.payload: 2 for message in traffic()})


def test_streams_write_each_message_and_each_batch_once_however_often_a_micro_batch_runs(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    database.create_topic("mirror", exist_ok=True)
    place = {"url": str(database.backend.url)}
    columns = "source,stream,event_time,publish_time,receive_time,ledger,entry,index"
    stream = spark.readStream.format("waterclock").options(
        **place, topic="telemetry", columns=columns, maxMessagesPerTrigger=30
    )
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        rows = stream.load().repartition(2)
        sink = rows.writeStream.format("waterclock").options(**place, topic="mirror", payloads="telemetry")
        sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    # Killed after it wrote and before it said so: the last micro-batches run again.
    for commit in (checkpoint / "commits").glob("[1-9]*"):
        commit.unlink()
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    run()
    mirrored = Counter(message.payload for message in database.topic("mirror").read())
    assert mirrored == Counter(message.payload for message in traffic())
    assert len(producers(database, "mirror")) <= 2
