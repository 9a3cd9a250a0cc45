"""The stateful operators of a streaming query. Each bucket of sources has one binary state and a timer.

Packed rows have a column ``clock`` with the stream's receive clock, from which Spark derives its watermark. The column
is dropped before rows are gathered by bucket: with it, Spark would silently leave out rows behind the watermark.
Instead, the batcher decides which messages are late.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.many_sources import ManySources, joined, many_from_cell, nothing
from waterclock.columnar.records import NUMBERED, POSITIONED
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.columnar.streams.id_stream import IdStream
from waterclock.columnar.streams.outcome_rows import CELL_SCHEMA, OUTCOMES_SCHEMA, expand, outcome_cells
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream
from waterclock.columnar.streams.state_encoding import REMEDY
from waterclock.columnar.streams.watermarks import NS_PER_MS
from waterclock.errors import InvalidArgumentError
from waterclock.spark.buckets import BATCH_LENGTH
from waterclock.spark.runtime.workers import freeze_imports, freezing_imports

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE = "batcher"
"""The name of the state. Spark refuses a checkpoint whose state of this name has another type of key."""

# The JVM would parse texts, with two calls per task.
_STATE_SCHEMA = StructType().add("state", BinaryType()).add("buckets", IntegerType())
_WAKING_STATE_SCHEMA = StructType([*_STATE_SCHEMA, StructField("timer", LongType())])

OPEN_BATCHES = "waterclock_open_batches"
"""The metric that a stream observes: ``buckets``, of those that a micro-batch changed numbers, open batches and missing
ids."""

_Key = tuple[int]


class Stream(Protocol):
    """The batchers of the sources of a bucket: `EventTimeStream`, `RateStream` or `IdStream`."""

    @property
    def open_batches(self) -> int:
        """How many windows with messages the last `take` has left open."""
        ...

    @property
    def missing_ids(self) -> int:
        """How many ids are missing; 0 if messages have none."""
        ...

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again without new messages; None: never."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the state is empty."""
        ...

    def take(self, arrived: ManySources, watermark: int) -> pa.RecordBatch:
        """Add messages, perhaps none, and return the outcomes."""
        ...

    def state(self) -> bytes:
        """Encode the whole state."""
        ...


class _Processor(StatefulProcessor):
    """Keeps the streams of buckets: the state of each, and one timer for its next wake-up.

    Parameters
    ----------
    record
        `waterclock.columnar.records.PLAIN`, `POSITIONED` or `NUMBERED`.
    buckets
        How many there are.
    wakes
        Whether streams use timers, and so whether the watermark counts.
    """

    def __init__(self, record: np.dtype[Any], buckets: int, *, wakes: bool) -> None:
        self._record = record
        self._buckets = buckets
        self._wakes = wakes

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the bucket that Spark is handling."""
        self._handle = handle
        self._state = handle.getValueState(_STATE, _WAKING_STATE_SCHEMA if self._wakes else _STATE_SCHEMA)

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Process a bucket's rows of a micro-batch."""
        yield from self._take(key, _messages(rows, self._record), timerValues, None)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Close due batches although no message came; forget sources whose state is no longer needed."""
        yield from self._take(key, nothing(self._record), timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """End a task."""
        freeze_imports()

    @abstractmethod
    def _stream(self, state: bytes | None) -> Stream:
        """Create the stream of a new bucket, or restore it from its state."""

    def _take(self, key: _Key, arrived: ManySources, timers: TimerValues, expired: int | None) -> Iterator[Row]:
        known = self._state.get()
        if known is None:
            stream, timer = self._stream(None), None
        else:
            _check_buckets(known[1], self._buckets)
            stream, timer = self._stream(bytes(known[0])), known[2] if self._wakes else None
        watermark = timers.getCurrentWatermarkInMs() if self._wakes else 0
        outcomes = stream.take(arrived, watermark)
        self._remember(stream, None if timer == expired else timer, watermark)
        yield from _rows(key, stream, outcomes)

    def _remember(self, stream: Stream, timer: int | None, watermark: int) -> None:
        """Write the state, and keep one timer that comes no later than the next due time."""
        due = stream.wakes_at
        if timer is not None and (due is None or not watermark < timer <= due):
            self._handle.deleteTimer(timer)
            timer = None
        if stream.is_empty:
            self._state.clear()
            return
        if timer is None and due is not None:
            self._handle.registerTimer(due)
            timer = due
        self._state.update((stream.state(), self._buckets) + ((timer,) * self._wakes))


class _Chunks:
    """The chunks of waiting messages of the bucket that Spark is handling."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, number: int) -> bytes | None:
        value = self._state.getValue((number,))
        return None if value is None else bytes(value[0])

    def __setitem__(self, number: int, chunk: bytes) -> None:
        self._state.updateValue((number,), (chunk,))

    def __delitem__(self, number: int) -> None:
        self._state.removeKey((number,))


class EventTimeProcessor(_Processor):
    """Batches the sources of buckets by event time."""

    def __init__(self, rule: EventTimeRule, record: np.dtype[Any], buckets: int) -> None:
        super().__init__(record, buckets, wakes=True)
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the bucket that Spark is handling."""
        super().init(handle)
        self._chunks = _Chunks(handle.getMapState("waiting", "number BIGINT", "chunk BINARY"))

    def _stream(self, state: bytes | None) -> Stream:
        if state is None:
            return EventTimeStream(self._rule, self._record, store=self._chunks)
        return EventTimeStream.restore(state, self._rule, self._record, self._chunks)


class RateProcessor(_Processor):
    """Batches the sources of buckets by rate, which uses a clock only to forget sources."""

    def __init__(self, options: RateOptions, buckets: int, *, adapts: bool = False) -> None:
        super().__init__(POSITIONED, buckets, wakes=options.forget_after is not None)
        self._options = options
        self._adapts = adapts
        self._length: int | None = None  # ns, of the bucket's new messages; None: that of the options

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: _Key,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803  # Spark passes it by this name
    ) -> Iterator[Row]:
        """Process a bucket's rows of a micro-batch, which all name its batch length if that adapts."""
        if self._adapts:
            first = next(rows)
            self._length, rows = first[BATCH_LENGTH], chain([first], rows)
        yield from super().handleInputRows(key, rows, timerValues)

    def _stream(self, state: bytes | None) -> Stream:
        stream = RateStream(self._options) if state is None else RateStream.restore(state, self._options)
        if self._length is not None:
            stream.set_batch_length(self._length)
        return stream


class IdProcessor(_Processor):
    """Batches the sources of buckets by id."""

    def __init__(self, rule: IdRule, buckets: int) -> None:
        super().__init__(NUMBERED, buckets, wakes=True)
        self._rule = rule

    def _stream(self, state: bytes | None) -> Stream:
        return IdStream(self._rule) if state is None else IdStream.restore(state, self._rule)


def event_time_stream(
    bucketed: DataFrame, rule: EventTimeRule, record: np.dtype[Any], max_skew: int, buckets: int
) -> DataFrame:
    """Batch a stream of bucketed messages by event time; see `waterclock.spark.event_time_outcomes`."""
    _check_session(bucketed)
    return _outcomes(_clocked(bucketed, max_skew), EventTimeProcessor(rule, record, buckets), "EventTime")


def rate_stream(bucketed: DataFrame, options: RateOptions, max_skew: int, buckets: int) -> DataFrame:
    """Batch a stream of bucketed messages by rate; see `waterclock.spark.rate_aware_outcomes`."""
    _check_session(bucketed)
    processor = RateProcessor(options, buckets, adapts=BATCH_LENGTH in bucketed.columns)
    if options.forget_after is None:
        return _outcomes(bucketed.drop("clock"), processor, "None")
    return _outcomes(_clocked(bucketed, max_skew), processor, "EventTime")


def id_stream(bucketed: DataFrame, rule: IdRule, max_skew: int, buckets: int) -> DataFrame:
    """Batch a stream of bucketed messages by id; see `waterclock.spark.id_outcomes`."""
    _check_session(bucketed)
    return _outcomes(_clocked(bucketed, max_skew), IdProcessor(rule, buckets), "EventTime")


def _clocked(bucketed: DataFrame, max_skew: int) -> DataFrame:
    """Derive Spark's watermark from the progress of the receive clock."""
    clocked = bucketed.withColumn("clock", F.timestamp_micros("clock"))
    return clocked.withWatermark("clock", f"{-(-max_skew // NS_PER_MS)} milliseconds").drop("clock")


def _outcomes(bucketed: DataFrame, processor: StatefulProcessor, time_mode: str) -> DataFrame:
    cells = bucketed.groupBy("bucket").transformWithState(
        statefulProcessor=processor, outputStructType=CELL_SCHEMA, outputMode="Append", timeMode=time_mode
    )
    ran = F.when(F.isnotnull("bucket"), F.array("bucket", "open_batches", "missing_ids"))
    return cells.observe(OPEN_BATCHES, F.collect_list(ran).alias("buckets")).mapInArrow(
        freezing_imports(expand), OUTCOMES_SCHEMA
    )


def _check_session(df: DataFrame) -> None:
    if df.sparkSession.conf.get(_NO_DATA, "true") != "true":
        raise InvalidArgumentError(
            f"{_NO_DATA} must be true, got false: otherwise, batches that the clock closes while no messages"
            f' arrive would not be written. Call spark.conf.set("{_NO_DATA}", "true")'
        )
    provider = df.sparkSession.conf.get(_PROVIDER, "Spark's default")
    if provider != _ROCKSDB:
        raise InvalidArgumentError(
            f"batching needs the state store of RocksDB, but {_PROVIDER} is {provider}. Start the session with"
            f' waterclock.spark.session(), or call spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")'
        )


def _check_buckets(known: int, wanted: int) -> None:
    if known != wanted:
        raise InvalidArgumentError(f"buckets must be {known}, as in the checkpoint, got {wanted}. {REMEDY}")


def _messages(rows: Iterator[Any], record: np.dtype[Any]) -> ManySources:
    return joined([many_from_cell(row["rows"], record) for row in rows], record)


def _rows(key: _Key, stream: Stream, outcomes: pa.RecordBatch) -> Iterator[Row]:
    yield Row(bucket=key[0], open_batches=stream.open_batches, missing_ids=stream.missing_ids, outcomes=None)
    for cell in outcome_cells(outcomes):
        yield Row(bucket=None, open_batches=None, missing_ids=None, outcomes=cell)
