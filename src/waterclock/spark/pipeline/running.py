"""Runs a pipeline: as a stream that goes on where it stopped, or over a range of the archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from waterclock import moments
from waterclock.errors import WaterclockError
from waterclock.spark.pipeline.file import AVAILABLE_NOW, PipelineFile
from waterclock.spark.pipeline.outputs import write_outcomes
from waterclock.spark.registering import register
from waterclock.spark.streaming.batching import event_time_outcomes, rate_aware_outcomes
from waterclock.time import to_duration

_LOOK_EVERY = 0.5
_FINISH_WITHIN = 60.0
_ARRIVED = "arrived"


class PipelineError(WaterclockError):
    """A pipeline ended with an error, whose text is that of its cause."""


@dataclass
class Progress:
    """How far a pipeline has come.

    Attributes
    ----------
    micro_batches, messages
        How many it has processed since it was started.
    rate
        Messages a second, of the newest micro-batch.
    lag
        Messages of the topic that are not read yet; None where that is not known yet.
    open_sources
        Sources with messages whose batch is not closed; None in a replay.
    rejected
        Messages that are in no batch, since the start.
    newest
        Number of the newest micro-batch that is counted; -1 before there is one.
    """

    micro_batches: int = 0
    messages: int = 0
    rate: float = 0.0
    lag: int | None = None
    open_sources: int | None = None
    rejected: int = 0
    newest: int = -1


def run_pipeline(
    spark: SparkSession,
    file: PipelineFile,
    *,
    once: bool = False,
    tell: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Progress:
    """Run a pipeline as a stream, from where its checkpoint says.

    Parameters
    ----------
    once
        Read what there is now, and end.
    tell
        Called now and then with the progress so far.
    stopping
        Called now and then; True stops the pipeline. The micro-batch under way is finished first.

    Raises
    ------
    PipelineError
        Where the stream ended with an error.
    """
    file.check_places()
    register(spark)
    source = spark.readStream.format("waterclock").options(**_read_options(file), **file.source.start)
    if file.source.max_messages_per_trigger is not None:
        source = source.option("maxMessagesPerTrigger", file.source.max_messages_per_trigger)
    # A row holds many messages, so Spark's own counts of rows say nothing.
    outcomes = _outcomes(file, _loaded(source).observe(_ARRIVED, F.sum("count").alias("messages")))
    progress = Progress()

    def write(rows: DataFrame, number: int) -> None:
        query = next(query for query in spark.streams.active if query.name == file.name)
        progress.rejected += _write(file, rows, run=query.id, micro_batch=number)

    writer = outcomes.writeStream.queryName(file.name).option("checkpointLocation", file.checkpoint)
    if once or file.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        milliseconds = to_duration(file.trigger, "trigger") // 1_000_000
        writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
    query = writer.foreachBatch(write).start()
    try:
        while not query.awaitTermination(_LOOK_EVERY):  # pyright: ignore[reportArgumentType]  # it takes fractions
            _follow(query, progress)
            tell(progress)
            if stopping():
                _finish(query)
    except PySparkException as error:
        raise PipelineError(_reason(error)) from error
    finally:
        query.stop()
    _follow(query, progress)
    tell(progress)
    return progress


def replay_pipeline(spark: SparkSession, file: PipelineFile, since: int, until: int) -> Progress:
    """Batch the messages published in a range of time anew, and write them to the outputs.

    The range is judged alone. Batches that are in a message table already stay as they are; rejected messages and
    Parquet files get a name that says the range, so that the same replay, done again, changes nothing.

    Parameters
    ----------
    since, until
        Publish times, ns.
    """
    file.check_places()
    register(spark)
    source = spark.read.format("waterclock").options(
        **_read_options(file), startingTimestamp=str(since), endingTimestamp=str(until)
    )
    progress = Progress(micro_batches=1)
    outcomes = _outcomes(file, _loaded(source))
    started = moments.monotonic()
    progress.rejected = _write(file, outcomes, run=f"replay-{since}-{until}", micro_batch=0, progress=progress)
    progress.rate = progress.messages / max(moments.monotonic() - started, 1e-9)
    return progress


def _outcomes(file: PipelineFile, messages: DataFrame) -> DataFrame:
    return (event_time_outcomes if file.by == "event_time" else rate_aware_outcomes)(messages, **file.rule)


def _loaded(source: DataFrameReader | DataStreamReader) -> DataFrame:
    try:
        return source.load()
    except PySparkException as error:
        raise PipelineError(_reason(error)) from error


def _read_options(file: PipelineFile) -> dict[str, str]:
    return file.source.place | {"topic": file.source.topic, "packed": "true"}


def _write(
    file: PipelineFile, outcomes: DataFrame, *, run: str, micro_batch: int, progress: Progress | None = None
) -> int:
    """Write some outcomes; give how many messages were rejected."""
    outcomes = outcomes.persist()
    try:
        write_outcomes(file, outcomes, run=run, micro_batch=micro_batch)
        counts = {
            row.rejection: row.messages
            for row in outcomes.groupBy("rejection")
            .agg({"count": "sum"})
            .withColumnRenamed("sum(count)", "messages")
            .collect()
        }
    finally:
        outcomes.unpersist()
    if progress is not None:
        progress.messages = sum(counts.values())
    return sum(count for rejection, count in counts.items() if rejection is not None)


def _follow(query: StreamingQuery, progress: Progress) -> None:
    for one in query.recentProgress:
        # Spark also reports where nothing came; such a report repeats the number of the micro-batch to come.
        if one.batchId <= progress.newest or not one.numInputRows:
            continue
        messages = one.observedMetrics[_ARRIVED].messages
        progress.newest = one.batchId
        progress.micro_batches += 1
        progress.messages += messages
        progress.rate = messages / max(one.durationMs["triggerExecution"], 1) * 1_000
    newest: Any = query.lastProgress
    if newest is None:
        return
    progress.lag = _lag(newest.sources[0])
    if newest.stateOperators:
        progress.open_sources = newest.stateOperators[0].numRowsTotal


def _lag(source: Any) -> int | None:
    # Before the first micro-batch Spark reports no offset, as nothing or as JSON's null.
    latest, end = (json.loads(text or "null") or {} for text in (source.latestOffset, source.endOffset))
    if "ordinal" not in latest or "ordinal" not in end:
        return None
    return latest["ordinal"] - end["ordinal"]


def _finish(query: StreamingQuery) -> None:
    give_up_at = moments.monotonic() + _FINISH_WITHIN
    while query.isActive and query.status["isTriggerActive"] and moments.monotonic() < give_up_at:
        query.awaitTermination(0.1)  # pyright: ignore[reportArgumentType]  # it takes fractions
    query.stop()


def _reason(error: PySparkException) -> str:
    """Take our own text out of what Spark wraps around it."""
    text = str(error)
    marker = "waterclock.errors."
    if marker not in text:
        return text
    return text[text.index(marker) :].split("\n", 1)[0].split(": ", 1)[1]
