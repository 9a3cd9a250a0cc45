"""Followers that are killed again and again put the batches of a Spark stream and of a Spark replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.live.conftest import START, landed
from tests.live.dying_follower import RULE
from tests.live.killed_follower import batch_through_kills
from tests.spark.results import results_in_frames, results_in_rows, results_of
from tests.support.clocks import MovableClock

import waterclock as wc
from waterclock.spark import event_time_outcomes, register


@pytest.mark.one_database
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_followers_put_the_batches_of_spark(
    spark: SparkSession, connect: Callable[..., wc.Database], database_url: str, tmp_path: Path, kills: int
) -> None:
    register(spark)
    clock = MovableClock(START)
    database = connect(clock=clock)
    topic = batch_through_kills(database, database_url, tmp_path / "ledgers", clock, kills)
    last = max(message.receive_time or 0 for message in topic.read()) + 3600 * 10**9
    topic.append([wc.Message("clock", "tick", last, receive_time=last)])  # closes every window of the stream
    live = results_of(map(wc.Batch.from_bytes, landed(database.table("batches")).values()), [])
    assert sum(map(len, live.batches.values())) > 100

    def outcomes(rows: DataFrame) -> DataFrame:
        return event_time_outcomes(rows, **RULE.rule._asdict(), max_skew="10s")

    options = {"url": database_url, "topic": "telemetry"}
    replay = results_in_frames(outcomes(spark.read.format("waterclock").options(**options).load()))
    replay.batches.pop("clock")
    assert replay.batches == live.batches
    collected: list[pa.Table] = []
    query = (
        outcomes(spark.readStream.format("waterclock").options(**options, maxMessagesPerTrigger=1_500).load())
        .writeStream.foreachBatch(lambda rows, _: collected.append(rows.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query.start().awaitTermination()
    stream = results_in_rows(rows for table in collected for rows in table.to_batches())
    assert stream.batches == live.batches
    assert stream.rejected == replay.rejected
    assert {reason for each in replay.rejected.values() for reason, _ in each} >= {"late", "future"}
