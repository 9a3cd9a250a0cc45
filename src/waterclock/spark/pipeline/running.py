"""Runs pipelines as streams that resume from their checkpoints, or one pipeline over a range of its topic."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.spark.pipeline.definition import AVAILABLE_NOW, Pipeline, place_options
from waterclock.spark.pipeline.failures import PipelineError, in_a_line, reason
from waterclock.spark.pipeline.fencing import PipelineRun, forget_refused, newest_begun, newest_planned, note_refused
from waterclock.spark.pipeline.lengths import LengthRecord, MeasuredLength, refuse_remote
from waterclock.spark.pipeline.outputs import (
    AlreadyWrittenError,
    refuse_appended,
    refuse_written,
    remove_unfinished,
    write_outcomes,
)
from waterclock.spark.pipeline.progress import MESSAGES, Progress, counts, observed
from waterclock.spark.pipeline.replaying import replayed
from waterclock.spark.pipeline.rules import OUTCOMES_BY, fixed_options, refuse_changed_rule
from waterclock.spark.registering import register
from waterclock.spark.runtime.partitions import PARTITIONS, Parts, chosen_buckets, chosen_partitions, parts_in
from waterclock.spark.runtime.settings import changed, planned_once
from waterclock.time import to_duration

_LOOK_EVERY = 0.5
_LOOK_AGAIN = 0.1

_FILE_TAKEN = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using")
"""Spark's errors if a file of the checkpoint that the query would write already exists, before or during the write."""

_MOST_COLLISIONS = 3
"""Collisions after which a run ends: an overtaken run causes at most two."""

_MESSAGES_A_BUCKET = 2**19
"""Default messages per micro-batch and bucket: a task holds all of a bucket's in memory, each in some 200 bytes."""

_REPLAY_TASKS = 8
"""Independent of the number of cores: the same replay on another machine must write the same."""

FINISH_WITHIN_S = 20.0
"""Seconds for which a stopping pipeline may continue the micro-batch under way; Kubernetes kills after 30 s."""


def run_pipelines(
    spark: SparkSession,
    pipelines: Sequence[Pipeline],
    *,
    once: bool = False,
    tell: Callable[[Sequence[Progress]], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> list[Progress]:
    """Run pipelines as parallel streams, each from its checkpoint.

    If one ends with an error, the others are stopped as well.

    Raises `PipelineError` if a stream ended with an error. Raises `InvalidArgumentError` if a checkpoint has its state
    in another number of partitions or buckets than the file asks for.

    Parameters
    ----------
    once
        Read the existing messages, and end.
    tell
        Called from time to time with the progress of each.
    stopping
        Called from time to time; True stops the pipelines. The micro-batches under way are finished first, if that
        takes no longer than `FINISH_WITHIN_S`; one that takes longer is run again, with the same number, by the next
        run.

    Topics and tables are not checked first: `waterclock.spark.pipeline.preflight.check_places` does so, without Spark.

    If two runs use one checkpoint, the later one continues, and the other ends with an error.
    """
    for pipeline in pipelines:
        refuse_remote(pipeline)
    register(spark)
    all_progress = [Progress.of(pipeline) for pipeline in pipelines]
    with _halting() as halt, in_a_line():
        with _stopped([]) as streams:
            for pipeline, progress in zip(pipelines, all_progress, strict=True):
                refuse_changed_rule(spark, pipeline)
                parts = state_parts(spark, pipeline)
                progress.state_partitions, progress.state_buckets = parts
                lengths = halt.with_name(f"length-{len(streams)}")
                progress.length = MeasuredLength.of(spark, pipeline, lengths)
                streams.append(_start(spark, pipeline, parts, once=once, halt=halt, lengths=lengths))
            while _follow(streams, all_progress):
                tell(all_progress)
                if stopping():
                    halt.touch()
                    _finish(streams)
                    break
        # Not whether they succeeded, since one that was abandoned did not.
        for stream, progress in zip(streams, all_progress, strict=True):
            progress.follow(stream.query)
    tell(all_progress)
    return all_progress


def run_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    once: bool = False,
    tell: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Progress:
    """Run one pipeline as a stream; see `run_pipelines`."""
    (progress,) = run_pipelines(spark, [pipeline], once=once, tell=lambda each: tell(each[0]), stopping=stopping)
    return progress


def replay_pipeline(spark: SparkSession, pipeline: Pipeline, since: int, until: int) -> Progress:
    """Batch the messages of a range of time again, and write them to the outputs.

    Adjacent ranges return each batch once, and overlapping ranges return the same batches: those of the whole topic
    that start in the range. Batches that later messages could still change are left out, unless the topic has ended.
    Batches that are already in a message table stay unchanged. Rejected messages and Parquet files get a name with the
    range, so that the same replay, run again, changes nothing. If two replays of one range run at the same time, the
    later one continues.

    Parameters
    ----------
    since, until
        Batches that start at or after the first and before the second, and messages that were rejected when they were
        received then; ns.
    """
    refuse_remote(pipeline)
    register(spark)
    progress = Progress.of(pipeline)
    progress.micro_batches, progress.missing_ids = 1, None
    run = f"replay-{since}-{until}"
    with in_a_line(), changed(spark, planned_once(spark)):
        outcomes = replayed(spark, pipeline, since, until).persist()
        started = moments.monotonic()
        entered = PipelineRun.enter(spark, pipeline.name, pipeline.checkpoint, run)
        check = partial(entered.check_latest, spark)
        producer = f"{pipeline.name}-{run}"
        try:
            with entered.checked_on_error(spark):
                remove_unfinished(spark, pipeline, run, check)
                write_outcomes(
                    pipeline, outcomes, run=run, producer=producer, micro_batch=0, tasks=_REPLAY_TASKS, check=check
                )
            found = outcomes.agg(*counts()).head()
        finally:
            outcomes.unpersist()
            entered.leave(spark)
    if found is not None:
        progress.count(found.asDict())
        progress.messages = found[MESSAGES] or 0
    progress.rate = progress.messages / max(moments.monotonic() - started, 1e-9)
    return progress


class MicroBatchWriter:
    """Writes the outcomes of one stream's micro-batches. It is pickled if Spark Connect runs it elsewhere."""

    def __init__(self, pipeline: Pipeline, run: PipelineRun, begun: int) -> None:
        self._pipeline = pipeline
        self._run = run
        self._begun = begun  # number of the newest micro-batch that may have written something
        self._stream: str | None = None
        self._lengths = None if pipeline.adaptive is None else LengthRecord(pipeline)

    @classmethod
    def enter(cls, spark: SparkSession, pipeline: Pipeline, run: PipelineRun) -> MicroBatchWriter:
        """Continue after earlier runs, which write no other micro-batch since ``run`` has entered.

        Raises `InvalidArgumentError` if an output holds a micro-batch that the checkpoint does not know.
        """
        begun = newest_begun(spark, pipeline.checkpoint)
        writer = cls(pipeline, run, begun)
        if newest_planned(spark, pipeline.checkpoint) >= 0:
            check = partial(run.check_latest, spark)
            writer._stream = _stream_id(spark, pipeline)
            refuse_written(spark, pipeline, writer._stream, begun + 1, check)
            refuse_appended(pipeline, writer._stream, begun + 1, check)
            forget_refused(spark, pipeline.checkpoint)
            remove_unfinished(spark, pipeline, writer._stream, check)
        return writer

    def __call__(self, outcomes: DataFrame, number: int) -> None:
        """Write a micro-batch's outcomes."""
        spark = outcomes.sparkSession
        check = partial(self._run.check_latest, spark)
        self._stream = stream = self._stream or _stream_id(spark, self._pipeline)
        repeats = number <= self._begun
        if not repeats:
            with self._noting_refusal(spark, number):
                refuse_written(spark, self._pipeline, stream, number, check)
            self._begun = number
        if self._lengths is not None:
            self._lengths.note(spark, number, check)
        outcomes = outcomes.persist()
        try:
            with self._run.checked_on_error(spark), self._noting_refusal(spark, number):
                write_outcomes(
                    self._pipeline,
                    outcomes,
                    run=stream,
                    producer=stream,
                    micro_batch=number,
                    repeats=repeats,
                    check=check,
                )
            check()  # otherwise Spark would commit the micro-batch, and then end the later run, which is processing it
        except (PySparkException, Py4JError) as error:
            # With its traces the text has thousands of characters, and Spark would match it against a pattern that
            # takes a stack frame for each.
            raise PipelineError(reason(str(error))) from None
        finally:
            with suppress(PySparkException, Py4JError):  # no data is lost, and the first error counts
                outcomes.unpersist()

    @contextmanager
    def _noting_refusal(self, spark: SparkSession, number: int) -> Generator[None]:
        """Record in the checkpoint, which has planned a micro-batch, that the outputs hold another's."""
        try:
            yield
        except AlreadyWrittenError:
            note_refused(spark, self._pipeline.checkpoint, number)
            raise


class _RunningStream:
    """The stream of one run of a pipeline.

    A run that was overtaken may write one more offset and one more commit before it ends. If the later run finds the
    place of its own file taken, Spark ends its query, and another query continues.
    """

    def __init__(self, spark: SparkSession, run: PipelineRun, writer: DataStreamWriter, partitions: int) -> None:
        self._spark = spark
        self._run = run
        self._writer = writer
        self._partitions = partitions
        self._collisions = 0
        self.query = self._start()

    def wait(self, seconds: float) -> bool:
        """Wait until the stream ends, and return whether it has; raise if it has ended with an error."""
        try:
            with self._run.checked_on_error(self._spark):
                return bool(self.query.awaitTermination(seconds))  # pyright: ignore[reportArgumentType]  # it takes fractions
        except PySparkException as error:
            self._collisions += 1
            if not _FILE_TAKEN.search(str(error)) or self._collisions > _MOST_COLLISIONS:
                raise
            self.query = self._start()
            return False

    def _start(self) -> StreamingQuery:
        with changed(self._spark, {PARTITIONS: str(self._partitions)}):
            return self._writer.start()


def _start(
    spark: SparkSession, pipeline: Pipeline, parts: Parts, *, once: bool, halt: Path, lengths: Path
) -> _RunningStream:
    most = pipeline.source.max_messages_per_trigger or _MESSAGES_A_BUCKET * parts.buckets
    source = spark.readStream.format("waterclock").options(
        **_read_options(pipeline),
        **pipeline.source.start,
        buckets=parts.buckets,
        rule=json.dumps(fixed_options(pipeline)),
        maxMessagesPerTrigger=most,
        failOnDataLoss=pipeline.source.fail_on_data_loss,
        haltFile=str(halt),
        **({} if pipeline.adaptive is None else {"lengthFile": str(lengths)}),
    )
    writer = observed(_outcomes(pipeline, source)).writeStream.queryName(pipeline.name)
    writer = writer.option("checkpointLocation", pipeline.checkpoint)
    if once or pipeline.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        milliseconds = to_duration(pipeline.trigger, "trigger") // 1_000_000
        writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
    run = PipelineRun.enter(spark, pipeline.name, pipeline.checkpoint)
    writer = writer.foreachBatch(MicroBatchWriter.enter(spark, pipeline, run))
    return _RunningStream(spark, run, writer, parts.partitions)


def state_parts(spark: SparkSession, pipeline: Pipeline) -> Parts:
    """Return the partitions of a pipeline's state: those of its checkpoint, its file, or the number of cores.

    Raises `InvalidArgumentError` if checkpoint and file differ, or the checkpoint has lost its stream's id.
    """
    kept = parts_in(spark, pipeline.checkpoint)
    if kept is None:
        partitions = pipeline.state_partitions or chosen_partitions(spark)
        return Parts(partitions, pipeline.state_buckets or chosen_buckets(partitions))
    _refuse_lost_id(spark, pipeline)
    for name, wanted, has in (
        ("state_partitions", pipeline.state_partitions, kept.partitions),
        ("state_buckets", pipeline.state_buckets, kept.buckets),
    ):
        if wanted is not None and wanted != has:
            raise InvalidArgumentError(
                f"run.{name} of pipeline {pipeline.name!r} must be {has}, as in its checkpoint, got {wanted}."
                f" Omit run.{name}, or start with another checkpoint"
            )
    return kept


def _stream_id(spark: SparkSession, pipeline: Pipeline) -> str:
    """Read the stream's id, which belongs to its checkpoint and outlives each run."""
    return json.loads(_metadata(spark, pipeline).head(1)[0][0])["id"]


def _metadata(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    return spark.read.text(f"{pipeline.checkpoint.rstrip('/')}/metadata")


def _refuse_lost_id(spark: SparkSession, pipeline: Pipeline) -> None:
    """Check that a checkpoint with offsets has the file with its stream's id, which names the outputs' writes.

    Spark would choose a new id, and a micro-batch that is repeated would be stored twice.
    """
    try:
        _ = _metadata(spark, pipeline).schema
    except PySparkException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise InvalidArgumentError(
            f"cannot start pipeline {quoted(pipeline.name)}: its checkpoint lacks the file 'metadata', so its last"
            " micro-batch may be written twice. Restore the whole checkpoint, or start with a new checkpoint and"
            " other outputs"
        ) from error


def _outcomes(pipeline: Pipeline, source: DataStreamReader) -> DataFrame:
    return OUTCOMES_BY[pipeline.by](source.load(), **pipeline.rule)


def _read_options(pipeline: Pipeline) -> dict[str, str]:
    place = place_options(pipeline.source.url, pipeline.source.ledgers)
    ids = {"idOf": pipeline.rule["id_of"]} if pipeline.by == "id" else {}
    return place | {"topic": pipeline.source.topic, "onDamage": pipeline.source.on_damage} | ids


def _follow(streams: Sequence[_RunningStream], all_progress: Sequence[Progress]) -> bool:
    """Count the results of the streams, and return whether any continues."""
    active = False
    for stream, progress in zip(streams, all_progress, strict=True):
        ended = stream.wait(_LOOK_EVERY / len(streams))
        progress.follow(stream.query)
        active = active or not ended
    return active


def _finish(streams: Sequence[_RunningStream]) -> None:
    """Wait for the micro-batches under way; the halt file keeps later ones empty."""
    give_up_at = moments.monotonic() + FINISH_WITHIN_S
    for stream in streams:
        while stream.query.isActive and stream.query.status["isTriggerActive"] and moments.monotonic() < give_up_at:
            stream.wait(_LOOK_AGAIN)


@contextmanager
def _stopped(streams: list[_RunningStream]) -> Generator[list[_RunningStream]]:
    try:
        yield streams
    finally:
        for stream in streams:
            with suppress(Exception):  # if Spark has ended, there is nothing to stop, and the first error counts
                stream.query.stop()


@contextmanager
def _halting() -> Generator[Path]:
    """Return a free path; once a file exists there, the sources of the queries report no more messages."""
    folder = Path(tempfile.mkdtemp(prefix="waterclock-pipeline-"))
    try:
        yield folder / "halt"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
