"""The stateful operators of a streaming query: one binary state a source, and a timer that closes idle sources.

A row of a micro-batch holds all that one task read of one source, so that Spark's state is asked once a source and
micro-batch. Before the rows are grouped they say how far the receive clock of the stream has come (column ``clock``),
from which Spark makes its watermark; then that column is dropped, because Spark would silently leave out rows behind
the watermark. What is late is for the batcher to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.errors import InvalidArgumentError
from waterclock.spark.packing import PackedRow
from waterclock.spark.session.workers import freeze_imports, freezing_imports
from waterclock.spark.streaming.event_time_stream import EventTimeStream
from waterclock.spark.streaming.judging import OUTCOMES_SCHEMA
from waterclock.spark.streaming.outcome_rows import OUTCOME_ROW_SCHEMA, Outcome, expand
from waterclock.spark.streaming.rate_stream import RateOptions, RateStream

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FIELDS = ("source", "streams", "count", "messages", "rejection", "batches")
_NS_PER_MS = 1_000_000

_Key = tuple[str]


class EventTimeProcessor(StatefulProcessor):
    """Batches sources by event time. Every source that remembers something has one timer."""

    def __init__(self, rule: EventTimeRule, record: np.dtype[Any]) -> None:
        self._rule = rule
        self._record = record

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the source that Spark is handling."""
        self._handle = handle
        self._state = handle.getValueState("batcher", "state BINARY, timer BIGINT")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Take in a source's rows of a micro-batch."""
        stream, timer = self._known()
        watermark = timerValues.getCurrentWatermarkInMs()
        outcomes = stream.take(_packed(rows), watermark)
        self._remember(stream, timer, watermark)
        yield from _rows(key, outcomes)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Close the batches that are due of a source that sent nothing; forget a source without open batches."""
        stream, timer = self._known()
        if timer == expiredTimerInfo.getExpiryTimeInMs():
            timer = None
        watermark = timerValues.getCurrentWatermarkInMs()
        outcomes = stream.take([], watermark)
        self._remember(stream, timer, watermark)
        yield from _rows(key, outcomes)

    def close(self) -> None:
        """End a task."""
        freeze_imports()

    def _known(self) -> tuple[EventTimeStream, int | None]:
        known = self._state.get()
        if known is None:
            return EventTimeStream(self._rule, self._record), None
        return EventTimeStream.restore(bytes(known[0]), self._rule, self._record), known[1]

    def _remember(self, stream: EventTimeStream, timer: int | None, watermark: int) -> None:
        """Write down what is known, and see to it that one timer comes, no later than something is due."""
        due = None if stream.forgettable(watermark) else stream.wakes_at
        if timer is not None and (due is None or not watermark < timer <= due):
            self._handle.deleteTimer(timer)
            timer = None
        if due is None:
            self._state.clear()
            return
        if timer is None:
            self._handle.registerTimer(due)
            timer = due
        self._state.update((stream.state(), timer))


class RateProcessor(StatefulProcessor):
    """Batches sources by rate, which asks no clock: there are no timers."""

    def __init__(self, options: RateOptions) -> None:
        self._options = options

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the source that Spark is handling."""
        self._state = handle.getValueState("batcher", "state BINARY")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Take in a source's rows of a micro-batch."""
        known = self._state.get()
        stream = RateStream(self._options) if known is None else RateStream.restore(bytes(known[0]), self._options)
        outcomes = stream.take(_packed(rows))
        self._state.update((stream.state(),))
        yield from _rows(key, outcomes)

    def close(self) -> None:
        """End a task."""
        freeze_imports()


def event_time_stream(packed: DataFrame, rule: EventTimeRule, record: np.dtype[Any], max_skew: int) -> DataFrame:
    """Batch a stream of packed messages by event time; see `waterclock.spark.event_time_outcomes`."""
    _check_provider(packed)
    clocked = packed.withColumn("clock", F.timestamp_micros("clock")).withWatermark(
        "clock", f"{-(-max_skew // _NS_PER_MS)} milliseconds"
    )
    return _outcomes(clocked.drop("clock"), EventTimeProcessor(rule, record), "EventTime")


def rate_stream(packed: DataFrame, options: RateOptions) -> DataFrame:
    """Batch a stream of packed messages by rate; see `waterclock.spark.rate_aware_outcomes`."""
    _check_provider(packed)
    return _outcomes(packed.drop("clock"), RateProcessor(options), "None")


def _outcomes(packed: DataFrame, processor: StatefulProcessor, time_mode: str) -> DataFrame:
    rows = packed.groupBy("source").transformWithState(
        statefulProcessor=processor, outputStructType=OUTCOME_ROW_SCHEMA, outputMode="Append", timeMode=time_mode
    )
    return rows.mapInArrow(freezing_imports(expand), OUTCOMES_SCHEMA)


def _check_provider(df: DataFrame) -> None:
    provider = df.sparkSession.conf.get(_PROVIDER, "Spark's default")
    if provider != _ROCKSDB:
        raise InvalidArgumentError(
            f"the session keeps its streaming state in {provider}; batching needs RocksDB: start the session with"
            f' waterclock.spark.session.session.session(), or call spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")'
        )


def _packed(rows: Iterator[Any]) -> Iterator[PackedRow]:
    for row in rows:
        yield row["streams"], row["count"], row["messages"]


def _rows(key: _Key, outcomes: list[Outcome]) -> Iterator[Row]:
    for found in outcomes:
        yield Row(**dict(zip(_FIELDS, found.row(key[0]), strict=True)))
