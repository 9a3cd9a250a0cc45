"""The same topic gives the same batches in process, in a stream, and in a replay: all scenarios, and real traffic."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.results import METADATA, Results, assert_same, results_in_frames, results_in_rows, without
from tests.spark.streaming.arrivals import SCHEMA, write
from tests.spark.topics import CLOCK, RULE, event_time_results, gated_streams, rate_results, whole_topic

from waterclock.arrow import to_arrow
from waterclock.message import Message
from waterclock.spark import event_time_outcomes, rate_aware_outcomes


@pytest.fixture(scope="module")
def topic() -> list[Message]:
    return whole_topic()


def cut_between_entries(messages: list[Message], pieces: int) -> list[list[Message]]:
    """Cut a topic at entries drawn by lot, the first piece tiny, the second one half of a scenario."""
    chance = random.Random(11)  # noqa: S311  # repeatable, nothing secret
    begins = [k for k, m in enumerate(messages) if m.position is not None and m.position.index == 0 and k]
    cuts = [begins[3], *sorted(chance.sample(begins[4:], pieces - 2)), len(messages)]
    return [messages[first:stop] for first, stop in zip([0, *cuts[:-1]], cuts, strict=True)]


def streamed(
    spark: SparkSession, tmp_path: Path, pieces: list[list[Message]], operator: Callable[[DataFrame], DataFrame]
) -> Results:
    """Stream a topic: first half of it a piece a micro-batch, then stopped, then the rest by twos."""
    collected: list[pa.Table] = []
    folder = tmp_path / "topic"
    folder.mkdir()
    for first, stop, at_once in ((0, len(pieces) // 2, 1), (len(pieces) // 2, len(pieces), 2)):
        for number in range(first, stop):
            write(folder, number, pieces[number])
        arriving = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).parquet(str(folder))
        query = (
            operator(arriving)
            .writeStream.foreachBatch(lambda outcomes, _: collected.append(outcomes.toArrow()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return results_in_rows(rows for outcomes in collected for rows in outcomes.to_batches())


def replayed(spark: SparkSession, messages: list[Message], operator: Callable[[DataFrame], DataFrame]) -> Results:
    table = pa.Table.from_batches([to_arrow(messages, positions=True)]).select(METADATA)
    return results_in_frames(operator(spark.createDataFrame(table).repartition(4)))


def test_by_event_time(spark: SparkSession, tmp_path: Path, topic: list[Message]) -> None:
    in_process = event_time_results(topic)
    assert {reason for each in in_process.rejected.values() for reason, _ in each} == {"late", "future", "duplicate"}
    assert_same(replayed(spark, topic, lambda df: event_time_outcomes(df, **RULE)), in_process)
    found = streamed(
        spark, tmp_path, cut_between_entries(topic, 4), lambda df: event_time_outcomes(df, **RULE, max_skew="1s")
    )
    assert_same(found, without(CLOCK, in_process))  # whose last window nothing closes


def test_by_rate(spark: SparkSession, tmp_path: Path, topic: list[Message]) -> None:
    options = {"gated": gated_streams(), "forget_after": "10s"}
    in_process = rate_results(topic, flush=True, **options)
    reasons = {b[3] for each in in_process.batches.values() for b in each}
    assert reasons >= {"start", "slots", "timeout", "stall", "flush"}
    assert_same(replayed(spark, topic, lambda df: rate_aware_outcomes(df, **options)), in_process)
    found = streamed(
        spark, tmp_path, cut_between_entries(topic, 4), lambda df: rate_aware_outcomes(df, **options, max_skew="1s")
    )
    assert_same(found, in_process)  # all sources but the clock, of which nothing is open, have been silent for an hour
