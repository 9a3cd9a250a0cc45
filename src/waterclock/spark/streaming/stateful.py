"""The stateful operators of a streaming query: one binary state a bucket of sources, and a timer that wakes it.

Before packed rows are gathered by bucket they say how far the receive clock of the stream has come (column ``clock``),
from which Spark makes its watermark; then that column is dropped, because Spark would silently leave out rows behind
the watermark. What is late is for the batcher to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.errors import InvalidArgumentError
from waterclock.spark.many_sources import ManySources, joined, many_from_cell, nothing
from waterclock.spark.packing import POSITIONED
from waterclock.spark.session.workers import freeze_imports, freezing_imports
from waterclock.spark.streaming.event_time_stream import EventTimeStream
from waterclock.spark.streaming.outcome_rows import CELL_SCHEMA, OUTCOMES_SCHEMA, expand, outcome_cells
from waterclock.spark.streaming.rate_options import RateOptions
from waterclock.spark.streaming.rate_stream import RateStream
from waterclock.spark.streaming.stream_state import REMEDY

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_NS_PER_MS = 1_000_000
_STATE = "batcher"
"""As it was called when each source had a state of its own: Spark compares the keys of equal names, and refuses."""

OPEN_SOURCES = "waterclock_open_sources"
"""The metric that a stream observes: ``buckets``, of those that a micro-batch changed how many sources are open."""

_Key = tuple[int]


class EventTimeProcessor(StatefulProcessor):
    """Batches the sources of buckets by event time. Every bucket that remembers something has one timer."""

    def __init__(self, rule: EventTimeRule, record: np.dtype[Any], buckets: int) -> None:
        self._rule = rule
        self._record = record
        self._buckets = buckets

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the bucket that Spark is handling."""
        self._handle = handle
        self._state = handle.getValueState(_STATE, "state BINARY, buckets INT, timer BIGINT")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Take in a bucket's rows of a micro-batch."""
        stream, timer = self._known()
        watermark = timerValues.getCurrentWatermarkInMs()
        outcomes = stream.take(_messages(rows, self._record), watermark)
        self._remember(stream, timer, watermark)
        yield from _rows(key, stream.open_sources, outcomes)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Close the batches that are due though nothing came; forget sources without open batches."""
        stream, timer = self._known()
        if timer == expiredTimerInfo.getExpiryTimeInMs():
            timer = None
        watermark = timerValues.getCurrentWatermarkInMs()
        outcomes = stream.take(nothing(self._record), watermark)
        self._remember(stream, timer, watermark)
        yield from _rows(key, stream.open_sources, outcomes)

    def close(self) -> None:
        """End a task."""
        freeze_imports()

    def _known(self) -> tuple[EventTimeStream, int | None]:
        known = self._state.get()
        if known is None:
            return EventTimeStream(self._rule, self._record), None
        _check_buckets(known[1], self._buckets)
        return EventTimeStream.restore(bytes(known[0]), self._rule, self._record), known[2]

    def _remember(self, stream: EventTimeStream, timer: int | None, watermark: int) -> None:
        """Write down what is known, and see to it that one timer comes, no later than something is due."""
        due = stream.wakes_at
        if timer is not None and (due is None or not watermark < timer <= due):
            self._handle.deleteTimer(timer)
            timer = None
        if due is None:
            self._state.clear()
            return
        if timer is None:
            self._handle.registerTimer(due)
            timer = due
        self._state.update((stream.state(), self._buckets, timer))


class RateProcessor(StatefulProcessor):
    """Batches the sources of buckets by rate, which asks no clock: there are no timers."""

    def __init__(self, options: RateOptions, buckets: int) -> None:
        self._options = options
        self._buckets = buckets

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the bucket that Spark is handling."""
        self._state = handle.getValueState(_STATE, "state BINARY, buckets INT")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Take in a bucket's rows of a micro-batch."""
        known = self._state.get()
        if known is None:
            stream = RateStream(self._options)
        else:
            _check_buckets(known[1], self._buckets)
            stream = RateStream.restore(bytes(known[0]), self._options)
        outcomes = stream.take(_messages(rows, POSITIONED))
        self._state.update((stream.state(), self._buckets))
        yield from _rows(key, stream.open_sources, outcomes)

    def close(self) -> None:
        """End a task."""
        freeze_imports()


def event_time_stream(
    bucketed: DataFrame, rule: EventTimeRule, record: np.dtype[Any], max_skew: int, buckets: int
) -> DataFrame:
    """Batch a stream of bucketed messages by event time; see `waterclock.spark.event_time_outcomes`."""
    _check_provider(bucketed)
    clocked = bucketed.withColumn("clock", F.timestamp_micros("clock")).withWatermark(
        "clock", f"{-(-max_skew // _NS_PER_MS)} milliseconds"
    )
    return _outcomes(clocked.drop("clock"), EventTimeProcessor(rule, record, buckets), "EventTime")


def rate_stream(bucketed: DataFrame, options: RateOptions, buckets: int) -> DataFrame:
    """Batch a stream of bucketed messages by rate; see `waterclock.spark.rate_aware_outcomes`."""
    _check_provider(bucketed)
    return _outcomes(bucketed.drop("clock"), RateProcessor(options, buckets), "None")


def _outcomes(bucketed: DataFrame, processor: StatefulProcessor, time_mode: str) -> DataFrame:
    cells = bucketed.groupBy("bucket").transformWithState(
        statefulProcessor=processor, outputStructType=CELL_SCHEMA, outputMode="Append", timeMode=time_mode
    )
    ran = F.when(F.isnotnull("bucket"), F.struct("bucket", "open_sources"))
    return cells.observe(OPEN_SOURCES, F.collect_list(ran).alias("buckets")).mapInArrow(
        freezing_imports(expand), OUTCOMES_SCHEMA
    )


def _check_provider(df: DataFrame) -> None:
    provider = df.sparkSession.conf.get(_PROVIDER, "Spark's default")
    if provider != _ROCKSDB:
        raise InvalidArgumentError(
            f"the session keeps its streaming state in {provider}; batching needs RocksDB: start the session with"
            f' waterclock.spark.session.session.session(), or call spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")'
        )


def _check_buckets(known: int, wanted: int) -> None:
    if known != wanted:
        raise InvalidArgumentError(
            f"buckets: the checkpoint was written with {known} and the query has {wanted}; give it buckets={known}, or"
            f" {REMEDY}"
        )


def _messages(rows: Iterator[Any], record: np.dtype[Any]) -> ManySources:
    return joined([many_from_cell(row["rows"], record) for row in rows], record)


def _rows(key: _Key, open_sources: int, outcomes: pa.RecordBatch) -> Iterator[Row]:
    yield Row(bucket=key[0], open_sources=open_sources, outcomes=None)
    for cell in outcome_cells(outcomes):
        yield Row(bucket=None, open_sources=None, outcomes=cell)
