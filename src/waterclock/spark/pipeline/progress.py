"""Counts the progress of a pipeline from Spark's reports on its micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pyspark import StatusTracker
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from waterclock._support import moments
from waterclock.batching.batch import RejectReason
from waterclock.batching.by_id.judging import REASONS as OF_IDS
from waterclock.batching.event_time.rule import REJECTIONS
from waterclock.connection import connect
from waterclock.message import Position
from waterclock.spark.pipeline.definition import Pipeline, PipelineSource
from waterclock.spark.pipeline.lengths import MeasuredLength
from waterclock.spark.streaming.stateful import OPEN_BATCHES

OUTCOMES = "outcomes"
"""The name of Spark's observation of a micro-batch's outcomes."""

MESSAGES = "messages"
"""The name of the number of messages among `counts`."""

_BATCHES = "batches"
_OUTSIDE = "outside"
_INCOMPLETE = "incomplete"
_WINDOWS = "windows"
_REASONS = get_args(RejectReason)
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_PHASES = {
    "latestOffset": "look",
    "queryPlanning": "plan",
    "addBatch": "batch_and_write",
    "walCommit": "begin",
    "commitOffsets": "commit",
    "commitBatch": "commit",
    "triggerExecution": "all",
}
"""The phases of a micro-batch that Spark times, with their names here."""


@dataclass
class Progress:
    """The progress of a pipeline.

    Attributes
    ----------
    pipeline
        Its name.
    micro_batches, messages
        How many it has processed since its start.
    batches
        How many it has returned since its start.
    rate
        Messages per second in the newest micro-batch.
    lag
        Messages of the topic that are not read yet; None if that is not known yet.
    position
        The place of the first of these; None if unknown.
    open_batches
        Windows with messages that are not closed yet; None in a replay.
    outside
        Messages outside the window of their batch, since the start.
    rejections
        Messages that are in no batch, by the reason, since the start.
    incomplete
        Batches by id that closed without all declared streams, since the start; None if none are declared.
    missing_ids
        By id, the ids between batches that are in no batch; None by time and in a replay.
    state_rows
        Rows of the state; None in a replay.
    state_bytes
        The state's share of the executors' memory; None in a replay.
    state_partitions
        Number of the state's partitions; None in a replay.
    state_buckets
        Number of buckets of its sources; None in a replay.
    phases
        How long the parts of the newest micro-batch took, ms.
    tasks
        How many tasks of the first micro-batch Spark has finished, and how many it knows; None before there are tasks,
        and if Spark does not report them, as through Spark Connect.
    newest
        Number of the newest counted micro-batch; -1 before the first.
    reported
        Spark's time of its newest report; None before the first.
    length
        The measured batch length, if it adapts; else None.
    by_bucket
        ``open_batches`` and ``missing_ids`` of each bucket of the state, as of the last micro-batch that changed it.
    """

    pipeline: str = ""
    micro_batches: int = 0
    messages: int = 0
    batches: int = 0
    rate: float = 0.0
    lag: int | None = None
    position: str | None = None
    open_batches: int | None = None
    outside: int = 0
    rejections: dict[RejectReason, int] = field(default_factory=lambda: dict.fromkeys(REJECTIONS.values(), 0))
    incomplete: int | None = None
    missing_ids: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    state_partitions: int | None = None
    state_buckets: int | None = None
    phases: dict[str, int] = field(default_factory=dict[str, int])
    tasks: tuple[int, int] | None = None
    newest: int = -1
    reported: str | None = None
    length: MeasuredLength | None = None
    by_bucket: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    @classmethod
    def of(cls, pipeline: Pipeline) -> Progress:
        """Begin to count for a pipeline."""
        progress = cls(pipeline.name)
        if pipeline.by == "id":
            progress.rejections = dict.fromkeys(OF_IDS, 0)
            progress.incomplete = 0 if "streams" in pipeline.rule else None
            progress.missing_ids = 0
        return progress

    @property
    def rejected(self) -> int:
        """Messages that are in no batch, since the start."""
        return sum(self.rejections.values())

    def count(self, observed: Mapping[str, Any]) -> None:
        """Add the observed outcomes of a micro-batch."""
        self.batches += observed[_BATCHES] or 0
        self.outside += observed[_OUTSIDE] or 0
        if self.incomplete is not None:
            self.incomplete += observed[_INCOMPLETE] or 0
        for reason in self.rejections:
            self.rejections[reason] += observed[reason] or 0

    def follow(self, query: StreamingQuery) -> None:
        """Count the micro-batches that have ended since."""
        spark = None if self.micro_batches or is_remote() else SparkSession.getActiveSession()
        if spark is not None:
            self.tasks = tasks_of(spark.sparkContext.statusTracker(), str(query.runId)) or self.tasks
        newest: Any = query.lastProgress
        # Spark remembers only a hundred reports, and reading each takes many calls.
        if newest is None or newest.timestamp == self.reported:
            return
        self.reported = newest.timestamp
        for one in query.recentProgress:
            # Spark also reports if no messages came; such a report has the number of the next micro-batch.
            if one.batchId > self.newest and "addBatch" in one.durationMs:
                self._count_micro_batch(one)
        if self.length is not None and "addBatch" not in newest.durationMs:
            self.length.rested(moments.monotonic_ns())
        latest, end = _offset(newest.sources[0].latestOffset), _offset(newest.sources[0].endOffset)
        if "ordinal" in latest and "ordinal" in end:
            self.lag, self.position = latest["ordinal"] - end["ordinal"], end["position"]
        if newest.stateOperators:
            state = newest.stateOperators[0]
            self.state_rows = state.numRowsTotal
            self.state_bytes = state.memoryUsedBytes

    def _count_micro_batch(self, report: StreamingQueryProgress) -> None:
        read = _read(report.sources[0])
        self.newest = report.batchId
        self.micro_batches += 1
        self.messages += read
        self.rate = read / max(report.durationMs["triggerExecution"], 1) * 1_000
        self.phases = _phases(report.durationMs)
        if OUTCOMES in report.observedMetrics:
            outcomes = _observed(report.observedMetrics[OUTCOMES])
            self.count(outcomes)
            if self.length is not None and read and self.micro_batches > 1:  # in the first, Spark compiles its code
                used = _offset(report.sources[0].endOffset)["length"]["batch_length"]
                self.length.worked(report.durationMs["addBatch"] * _NS_PER_MS, outcomes[_WINDOWS] or 0, used)
        if OPEN_BATCHES in report.observedMetrics:
            for bucket, open_batches, missing_ids in _observed(report.observedMetrics[OPEN_BATCHES])["buckets"]:
                self.by_bucket[bucket] = open_batches, missing_ids
            self.open_batches, missing = _sums(self.by_bucket.values())
            self.missing_ids = None if self.missing_ids is None else missing

    def lag_seconds(self, source: PipelineSource) -> float | None:
        """Return how long the first unread message has been in the topic; None if unknown."""
        if not self.lag or self.position is None:
            return None if self.lag is None else 0.0
        with connect(source.url, source.ledgers) as database:
            topic = database.topic(source.topic)
            first = next(topic.read(Position.parse(self.position), limit=1, on_damage="skip"), None)
            if first is None or first.position is None:
                return 0.0
            now = database.backend.now()
            # An imported message may have old times, but was appended after its ledger got its first entry.
            [ledger] = topic.ledgers(first.position.ledger, limit=1)
            times = (first.publish_time, first.receive_time, ledger.opened_at)
            appended = max((time for time in times if time is not None and time <= now), default=now)
            return (now - appended) / _NS_PER_S


def observed(outcomes: DataFrame) -> DataFrame:
    """Observe outcomes on their way: Spark evaluates `counts`."""
    return outcomes.observe(OUTCOMES, *counts())


def counts() -> list[Column]:
    """Return the expressions that count messages, batches, messages outside their windows, and rejected by reason."""
    batches = F.sum(F.when(F.col("rejection").isNull(), F.size("batches")))
    by_reason = [F.sum(F.when(F.col("rejection") == reason, F.col("count"))).alias(reason) for reason in _REASONS]
    # As text: a lambda of Python's gets new names each time, and Spark would compile the code of each replay again.
    outside = F.sum(F.expr("aggregate(batches, 0L, (total, batch) -> total + batch.outside)"))
    timed_out = F.expr("size(filter(batches, batch -> batch.reason = 'timeout'))")
    incomplete = F.sum(F.when(F.col("rejection").isNull(), timed_out))
    windows = F.max(F.when(F.col("rejection").isNull(), F.size("batches")))
    totals = {
        MESSAGES: F.sum("count"),
        _BATCHES: batches,
        _WINDOWS: windows,
        _OUTSIDE: outside,
        _INCOMPLETE: incomplete,
    }
    return [*(column.alias(name) for name, column in totals.items()), *by_reason]


def tasks_of(tracker: StatusTracker, run: str) -> tuple[int, int] | None:
    """Count the finished and the known tasks of a query's run, whose id is the group of its jobs in Spark."""
    stages: dict[int, bool] = {}  # by stage number: whether a running job has it
    for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(run)):
        if job is not None:
            runs = job.status == "RUNNING"
            stages |= {stage: runs or stages.get(stage, False) for stage in job.stageIds}
    done = known = 0
    for stage, runs in stages.items():
        info = tracker.getStageInfo(stage)
        if info is not None and (runs or info.numCompletedTasks):  # an ended job may have skipped stages
            done, known = done + info.numCompletedTasks, known + info.numTasks
    return (done, known) if known else None


def _sums(counted: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Add up pairs of counts, of which there may be none."""
    pairs = list(counted)
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


def _observed(row: Row) -> dict[str, Any]:
    """Return observed values by name; Spark Connect returns values and names separately."""
    observed = row.asDict()
    if not is_remote():
        return observed
    return dict(zip((field["name"] for field in observed["schema"]["fields"]), observed["values"], strict=True))


def _read(source: Any) -> int:
    """Count the messages between the offsets of a micro-batch: a row of it holds many."""
    start, end = _offset(source.startOffset), _offset(source.endOffset)
    if "ordinal" not in end:
        return 0
    return end["ordinal"] - start.get("ordinal", end.get("begin", end["ordinal"]))


def _offset(reported: Any) -> dict[str, Any]:
    # Before the first micro-batch Spark reports a missing offset, or JSON's null.
    offset = json.loads(reported or "null") if isinstance(reported, str | None) else reported
    return offset or {}


def _phases(durations: Mapping[str, int]) -> dict[str, int]:
    phases: dict[str, int] = {}
    for spark, own in _PHASES.items():
        if spark in durations:
            phases[own] = phases.get(own, 0) + durations[spark]
    return phases
