"""A real topic, part of it sealed, gives the same batches through the format ``waterclock`` as in process.

All scenarios and a slice of the recorded traffic, with a size of micro-batches and a restart in the middle. A stream of
files takes all of it through the same operators in each run; this longer way is for the soak.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.results import (
    METADATA,
    Results,
    assert_same,
    results_in_frames,
    results_in_rows,
    results_one_by_one,
    without,
)
from tests.spark.topics import CLOCK, RULE, event_time_results, rate_results, whole_topic

import waterclock as wc
from waterclock.message import Message
from waterclock.spark import event_time_outcomes, rate_aware_outcomes, register

RECORDED = 600
RATE_OPTIONS = {"batch_length": "400ms", "timeout": "900ms", "gated": False}

PACKED = {"packed": "true"}
BUCKETED = {"buckets": "64"}
ROWS = {"columns": ",".join(METADATA)}

Operator = Callable[[DataFrame], DataFrame]


class Flow:
    """A topic that is filled by halves."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'factory.db'}"
        self._database = wc.connect(self.url)
        self.topic = self._database.create_topic("telemetry", roll_after=None)
        messages = whole_topic(RECORDED)
        self._entries = [list(entry) for _, entry in groupby(messages, key=lambda m: m.position and m.position[:2])]
        self._half = len(self._entries) // 2

    def append_first_half(self) -> None:
        """Append one half, of which one half is sealed in two files, and the rest is rows."""
        for number, entry in enumerate(self._entries[: self._half]):
            if number in (self._half // 4, self._half // 2):
                self.topic.roll()
            self._append(entry)
        self.topic.seal()

    def append_second_half(self) -> None:
        for entry in self._entries[self._half :]:
            self._append(entry)
        self.topic.roll()
        self.topic.seal()
        self.topic.compact()

    def _append(self, entry: list[Message]) -> None:
        self.topic.append([m.replace(publish_time=m.receive_time) for m in entry])

    @property
    def messages(self) -> list[Message]:
        return list(self.topic.read())

    @property
    def place(self) -> dict[str, str]:
        return {"url": self.url, "topic": "telemetry"}


@pytest.fixture
def flow(spark: SparkSession, tmp_path: Path) -> Flow:
    register(spark)
    return Flow(tmp_path)


def streamed(spark: SparkSession, flow: Flow, folder: Path, operator: Operator, form: dict[str, str]) -> Results:
    """Stream the topic as far as it goes, stop, and go on with another size of micro-batches when it has grown."""
    collected: list[pa.Table] = []
    for size, grow in ((400, flow.append_first_half), (900, flow.append_second_half)):
        grow()
        options = {**flow.place, **form, "maxMessagesPerTrigger": size}
        arriving = spark.readStream.format("waterclock").options(**options).load()
        query = (
            operator(arriving)
            .writeStream.foreachBatch(lambda outcomes, _: collected.append(outcomes.toArrow()))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert len(collected) > 3
    return results_in_rows(rows for outcomes in collected for rows in outcomes.to_batches())


def replayed(spark: SparkSession, flow: Flow, operator: Operator, form: dict[str, str]) -> Results:
    return results_in_frames(
        operator(
            spark.read.format("waterclock").options(**flow.place, **(form if form is not BUCKETED else PACKED)).load()
        )
    )


def by_rate(df: DataFrame) -> DataFrame:
    options: dict[str, Any] = RATE_OPTIONS
    return rate_aware_outcomes(df, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", [PACKED, ROWS, BUCKETED], ids=["packed", "rows", "buckets"])
def test_by_event_time(spark: SparkSession, flow: Flow, tmp_path: Path, form: dict[str, str]) -> None:
    found = streamed(spark, flow, tmp_path, lambda df: event_time_outcomes(df, **RULE, max_skew="1s"), form)
    in_process = event_time_results(flow.messages)
    assert_same(found, without(CLOCK, in_process))  # whose last window nothing closes
    assert_same(replayed(spark, flow, lambda df: event_time_outcomes(df, **RULE), form), in_process)


@pytest.mark.slow
@pytest.mark.parametrize("form", [PACKED, ROWS, BUCKETED], ids=["packed", "rows", "buckets"])
def test_by_rate_with_options_of_its_own(spark: SparkSession, flow: Flow, tmp_path: Path, form: dict[str, str]) -> None:
    found = streamed(spark, flow, tmp_path, by_rate, form)
    assert_same(found, rate_results(flow.messages, flush=False, **RATE_OPTIONS))
    assert_same(replayed(spark, flow, by_rate, form), rate_results(flow.messages, flush=True, **RATE_OPTIONS))


def test_a_packed_replay_of_sealed_and_open_ledgers(spark: SparkSession, flow: Flow) -> None:
    flow.append_first_half()
    found = replayed(spark, flow, lambda df: event_time_outcomes(df, **RULE), PACKED)
    assert_same(found, event_time_results(flow.messages))
    assert_same(replayed(spark, flow, by_rate, PACKED), rate_results(flow.messages, flush=True, **RATE_OPTIONS))


@pytest.mark.slow
def test_messages_that_wait_in_a_state_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    url = f"sqlite:///{tmp_path / 'factory.db'}"
    begin, step, entry = 1_782_900_000 * 10**9, 30 * 10**9, 5_000
    with wc.connect(url) as database:
        topic = database.create_topic("telemetry")
        for first in range(begin, begin + 4 * step, step):
            times = range(first, first + step, step // entry)
            topic.append([Message(f"x{t % 7}", "s", t, publish_time=t, receive_time=t) for t in times])
        end = begin + 100 * step
        topic.append([Message(CLOCK, "tick", end, publish_time=end, receive_time=end)])
        messages = list(topic.read())
    rule: dict[str, Any] = {"window": "500ms", "max_delay": "15m"}
    arriving = spark.readStream.format("waterclock").options(url=url, topic="telemetry", buckets=1)
    outcomes = event_time_outcomes(arriving.option("maxMessagesPerTrigger", entry).load(), **rule, max_skew="1s")
    collected: list[pa.Table] = []
    query = (
        outcomes.writeStream.foreachBatch(lambda found, _: collected.append(found.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    values = [progress["stateOperators"][0]["numRowsTotal"] for progress in query.recentProgress]
    assert max(values) > 3  # chunks besides the state and its timer
    found = results_in_rows(rows for outcomes in collected for rows in outcomes.to_batches())
    assert_same(found, without(CLOCK, results_one_by_one(messages, **rule)))
