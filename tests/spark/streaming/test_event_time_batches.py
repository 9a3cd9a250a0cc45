"""Batching on Spark gives the batches of the batcher in one process."""

from __future__ import annotations

import random
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import BinaryType, CharType, StringType, VarcharType
from tests.batching.event_time.scenario import Scenario, scenario_files
from tests.spark.results import METADATA, facts, frame, in_entries, results_in_frames, results_one_by_one

from waterclock.arrow import to_arrow
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.spark import batches_of, event_time_batches, event_time_outcomes, rate_aware_batches, rejected_of
from waterclock.spark.reading.column_types import is_text

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
COLUMNS_OF_RATE = ["'x' AS source", "'a' AS stream", "value AS event_time", "value AS receive_time"]
RANDOM_RULE = {"window": 50, "max_delay": 40, "max_lead": 2}


@pytest.fixture(scope="module")
def traffic() -> list[Message]:
    """Messages of 30 sources in order of arrival: jittered, some late, some ahead of the clock, some twice."""
    chance = random.Random(7)  # noqa: S311  # repeatable, nothing secret
    messages: list[Message] = []
    for number in range(4_000):
        event_time = number * 3 + chance.randrange(60)
        received = event_time + chance.choice([-4, -1, 0, 5, 20, 30, 40, 41])
        sent = Message(f"source {chance.randrange(30)}", chance.choice("abcde"), event_time, receive_time=received)
        messages += [sent] * chance.choice([1, 1, 1, 1, 2])
    return sorted(messages, key=lambda m: m.receive_time or 0)


OF_A_RULE = [list(paths) for _, paths in groupby(scenario_files(), lambda path: Scenario.read(path).rule)]


@pytest.mark.parametrize("paths", OF_A_RULE, ids=lambda paths: " ".join(path.stem for path in paths))
def test_the_documents_use_cases(spark: SparkSession, paths: list[Path]):
    """Those of one rule are sources of one job."""
    scenarios = {path.stem: Scenario.read(path) for path in paths}
    sent = [m.replace(source=name) for name, scenario in scenarios.items() for m in scenario.messages.values()]
    rule = next(iter(scenarios.values())).rule
    found = results_in_frames(event_time_outcomes(frame(spark, sent, positions=False, partitions=3), **rule))
    for source, scenario in scenarios.items():
        assert found.batches[source] == [
            (
                *(b.start, b.end, b.closed_at, b.reason, b.run, None),
                [facts(scenario.messages[name]) for name in b.messages],
            )
            for b in scenario.batches
        ]
        rejected = [(reason, facts(scenario.messages[name])) for name, reason in scenario.rejected.items()]
        assert found.rejected.get(source, []) == sorted(rejected)


@pytest.mark.parametrize("on_conflict", ["split", "replace", "isolate"])
def test_many_sources_from_many_partitions_have_the_results_that_the_batcher_gives(
    spark: SparkSession, traffic: list[Message], on_conflict: str
):
    options = RANDOM_RULE | {"on_conflict": on_conflict}
    outcomes = event_time_outcomes(frame(spark, traffic, positions=False, partitions=4), **options)
    found = results_in_frames(outcomes)
    assert found == results_one_by_one(traffic, **options)
    reasons = {reason for rejections in found.rejected.values() for reason, _ in rejections}
    assert reasons == {"late", "future", "duplicate"} | ({"replaced"} if on_conflict == "replace" else set())


def test_messages_with_positions_are_judged_in_reading_order(spark: SparkSession, traffic: list[Message]):
    chance = random.Random(8)  # noqa: S311  # repeatable, nothing secret
    out_of_order = in_entries(sorted(traffic, key=lambda m: (m.receive_time or 0) + chance.randrange(20)), 7)
    outcomes = event_time_outcomes(frame(spark, out_of_order, positions=True, partitions=4), **RANDOM_RULE)
    found = results_in_frames(outcomes)
    assert found == results_one_by_one(out_of_order, **RANDOM_RULE)
    assert found != results_one_by_one(sorted(out_of_order, key=lambda m: m.receive_time or 0), **RANDOM_RULE)


def test_the_counts_of_all_outcomes_add_up_to_the_messages(spark: SparkSession, traffic: list[Message]):
    outcomes = event_time_outcomes(frame(spark, traffic, positions=False, partitions=2), **RANDOM_RULE)
    counts = {row["rejection"]: row["sum(count)"] for row in outcomes.groupBy("rejection").sum("count").collect()}
    assert sum(counts.values()) == len(traffic)
    assert batches_of(outcomes).agg(F.sum("count")).first() == (counts[None],)


def test_times_may_be_durations_as_everywhere(spark: SparkSession):
    ms = 1_000_000
    messages = [Message("x", "a", at * ms, receive_time=at * ms) for at in (0, 600)]
    (first, second) = (
        event_time_batches(frame(spark, messages, positions=False, partitions=1)).orderBy("start").collect()
    )
    assert (first["start"], first["end"], first["closed_at"]) == (0, 500 * ms, 900 * ms)
    assert second["id"] == f"x@{600 * ms}"


def test_no_messages_make_no_batches(spark: SparkSession, traffic: list[Message]):
    nothing = frame(spark, traffic[:1], positions=True, partitions=1).where("false")
    outcomes = event_time_outcomes(nothing)
    assert batches_of(outcomes).collect() == []
    assert rejected_of(outcomes).collect() == []


def test_payloads_are_not_even_read(spark: SparkSession, tmp_path: Path):
    table = pa.Table.from_batches([to_arrow([Message("x", "a", 1, b"large", receive_time=2)], positions=False)])
    pq.write_table(table, tmp_path / "messages.parquet")
    batches = event_time_batches(spark.read.parquet(str(tmp_path)))
    assert batches.count() == 1
    (read,) = [line.split("ReadSchema:")[1] for line in _plan(batches).splitlines() if "ReadSchema:" in line]
    assert read.strip() == "struct<source:string,stream:string,event_time:bigint,receive_time:bigint>"


def test_a_null_fails_the_job_with_its_column(spark: SparkSession, traffic: list[Message]):
    holed = frame(spark, traffic[:10], positions=False, partitions=1).withColumn(
        "receive_time", F.when(F.col("stream") != traffic[0].stream, F.col("receive_time"))
    )
    with pytest.raises(
        Exception, match="'receive_time' must not be null, got null in the message with source "
    ) as raised:
        event_time_batches(holed).collect()
    assert "python worker" not in str(raised.value).lower()


@pytest.mark.parametrize("column", ["source", "event_time", "entry"])
def test_a_null_is_named_with_the_position_of_its_message(
    spark: SparkSession, traffic: list[Message], column: str
) -> None:
    holed = frame(spark, in_entries(traffic[:3], 3), positions=True, partitions=1).withColumn(
        column, F.when(F.col("index") != 1, F.col(column))
    )
    place = "0:null:1" if column == "entry" else "0:0:1"
    with pytest.raises(Exception, match=f"column '{column}' must not be null, got null in the message at {place}"):
        rate_aware_batches(holed).collect()


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("stream", "IF(index = 1, CAST(X'FF41' AS STRING), stream)", "UTF-8, got bytes FF41"),
        ("source", "IF(index = 1, '', source)", "non-empty text, got ''"),
        (
            "event_time",
            "IF(index = 1, TIMESTAMP'9999-12-31 00:00:00', timestamp_micros(event_time div 1000))",
            "from 1677-09-21 to 2262-04-11, got 9999-12-31 00:00:00",
        ),
        ("ledger", "IF(index = 1, -1L, ledger)", f"from 0 to {2**63 - 1}, got -1"),
    ],
)
def test_a_value_that_no_message_may_have_is_named_with_the_position(
    spark: SparkSession, traffic: list[Message], column: str, value: str, problem: str
) -> None:
    given = frame(spark, in_entries(traffic[:3], 3), positions=True, partitions=1).withColumn(column, F.expr(value))
    place = "-1:0:1" if column == "ledger" else "0:0:1"
    with pytest.raises(Exception, match=f"column '{column}' must be {problem} in the message at {place}") as raised:
        event_time_batches(given).collect()
    assert "python worker" not in str(raised.value).lower()


def test_columns_in_other_cases_and_of_other_widths_are_batched(spark: SparkSession, traffic: list[Message]) -> None:
    given = frame(spark, in_entries(traffic[:300], 3), positions=True, partitions=2)
    elsewhere = given.selectExpr(
        "source COLLATE UTF8_LCASE AS SOURCE", "stream AS Stream", "event_time", "receive_time AS RECEIVE_TIME",
        "ledger", "CAST(entry AS INT) AS entry", "CAST(index AS BIGINT) AS Index",
    )  # fmt: skip
    found, wanted = (results_in_frames(event_time_outcomes(each, **RANDOM_RULE)) for each in (elsewhere, given))
    assert found == wanted
    assert rate_aware_batches(elsewhere).agg({"count": "sum"}).collect() == [(300,)]
    too_large = elsewhere.where("entry = 0 AND ledger = 0").withColumn("Index", F.lit(2**31))
    with pytest.raises(Exception, match="'index' must be from 0 to 2147483647, got 2147483648 in the message at 0:0:2"):
        rate_aware_batches(too_large).collect()


def test_a_text_column_of_a_limited_length_is_text() -> None:
    assert all(is_text(kind) for kind in (StringType(), StringType("UTF8_LCASE"), VarcharType(5), CharType(5)))
    assert not is_text(BinaryType())


def test_a_stream_without_rocksdb_is_refused_with_what_to_do(spark: SparkSession):
    other = spark.newSession()
    other.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    arriving = other.readStream.format("rate").load().selectExpr(*COLUMNS_OF_RATE)
    with pytest.raises(
        InvalidArgumentError, match=r"needs the state store of RocksDB, but .*HDFSBacked.*session\(\), or call"
    ):
        event_time_batches(arriving)


def test_a_stream_without_micro_batches_that_have_no_data_is_refused(spark: SparkSession):
    other = spark.newSession()
    other.conf.set(NO_DATA, "false")
    arriving = other.readStream.format("rate").load().selectExpr(*COLUMNS_OF_RATE)
    with pytest.raises(InvalidArgumentError, match=f"{NO_DATA} must be true, got false"):
        event_time_batches(arriving)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (
            ["source", "stream", "event_time"],
            "must have a column 'receive_time', got columns source, stream, event_time",
        ),
        (
            ["source", "stream", "CAST(timestamp_micros(event_time) AS TIMESTAMP_NTZ) AS event_time", "receive_time"],
            "column 'event_time' must be timestamp, or bigint in nanoseconds since the epoch, got timestamp_ntz",
        ),
        (
            ["source", "stream", "event_time", "CAST(receive_time AS DOUBLE) AS receive_time"],
            "column 'receive_time' must be timestamp, or bigint in nanoseconds since the epoch, got double",
        ),
        (
            ["source", "stream", "current_date AS event_time", "receive_time"],
            "column 'event_time' must be timestamp, .* got date",
        ),
        (
            ["source", "stream", "null AS event_time", "receive_time"],
            "column 'event_time' must be timestamp, or bigint .* got void",
        ),
        (
            ["source", "stream", "event_time", "CAST(receive_time AS DECIMAL(20, 0)) AS receive_time"],
            r"column 'receive_time' must be .*, got decimal\(20,0\). Cast it to BIGINT if it holds nanoseconds",
        ),
        (
            ["source", "stream", "stream AS STREAM", "event_time", "receive_time"],
            "must have one column 'stream', got 'stream', 'STREAM'. Drop or rename the other columns",
        ),
        (
            ["*", "1 AS ledger", "1 AS entry", "'1' AS index"],
            "column 'index' must be int as part of the position, got string. If the column means something else, rename"
            " the column",
        ),
        (["1 AS source", "stream", "event_time", "receive_time"], "column 'source' must be string, got int"),
    ],
)
def test_wrong_columns_are_refused_before_anything_runs(
    spark: SparkSession, traffic: list[Message], columns: list[str], complaint: str
):
    given = frame(spark, traffic[:1], positions=False, partitions=1).selectExpr(*columns)
    with pytest.raises(InvalidArgumentError, match=complaint):
        event_time_batches(given)


def test_timestamps_land_at_their_moment_in_any_zone_of_the_session(spark: SparkSession, traffic: list[Message]):
    given = frame(spark, in_entries(traffic[:500], 7), positions=True, partitions=2)
    exact = given.withColumn("event_time", F.expr("event_time * 1000")).withColumn(
        "receive_time", F.expr("receive_time * 1000")
    )
    stamped = given.withColumn("event_time", F.timestamp_micros("event_time")).withColumn(
        "receive_time", F.timestamp_micros("receive_time")
    )
    rule = {"window": 50_000, "max_delay": 40_000}
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert results_in_frames(event_time_outcomes(stamped, **rule)) == results_in_frames(
            event_time_outcomes(exact, **rule)
        )
        starts = [row["start"] for row in rate_aware_batches(stamped).orderBy("source", "start").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert starts == [row["start"] for row in rate_aware_batches(exact).orderBy("source", "start").collect()]


def test_wrong_options_are_refused_before_anything_runs(spark: SparkSession, traffic: list[Message]):
    given = frame(spark, traffic[:1], positions=False, partitions=1)
    with pytest.raises(InvalidArgumentError, match=r"window must be a duration .*, got 'soon'"):
        event_time_batches(given, window="soon")


def _plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def test_the_bytes_that_are_shuffled_do_not_grow_with_the_payloads(spark: SparkSession, tmp_path: Path):
    chance = random.Random(9)  # noqa: S311  # repeatable, nothing secret
    written: list[int] = []
    for name, size in (("without", 0), ("with", 2_000)):
        messages = [
            Message(f"s{k % 7}", "a", k * 10**6, chance.randbytes(size), receive_time=k * 10**6) for k in range(3_000)
        ]
        table = pa.Table.from_batches([to_arrow(in_entries(messages, 100), positions=True)])
        pq.write_table(table.select([*METADATA, "payload"]), tmp_path / f"{name}.parquet")
        arrived = spark.read.parquet(str(tmp_path / f"{name}.parquet"))
        written.append(_shuffled(spark, f"payloads {name}", event_time_batches(arrived, window="5ms")))
        written.append(_shuffled(spark, f"payloads {name}, by rate", rate_aware_batches(arrived, gated=["a"])))
    assert written[0] > 0
    assert written[:2] == written[2:]


def _shuffled(spark: SparkSession, group: str, batches: DataFrame) -> int:
    """Count the bytes that a job's stages wrote for the next one, as Spark measured them."""
    context = spark.sparkContext
    context.setJobGroup(group, group)
    batches.collect()
    context.setLocalProperty("spark.jobGroup.id", None)
    jobs = context.statusTracker().getJobIdsForGroup(group)
    store = context._jsc.sc().statusStore()
    stages = {stage for job in jobs for stage in context.statusTracker().getJobInfo(job).stageIds}
    return sum(store.lastStageAttempt(stage).shuffleWriteBytes() for stage in stages)
