"""Writes the outcomes of messages to the outputs of a pipeline. A repeated write changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.utils import is_remote

from waterclock._support.quoting import quoted
from waterclock.batching.batch import short_source
from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError
from waterclock.spark.pace import BYTES_AT_ONCE
from waterclock.spark.pipeline.definition import Pipeline, PipelineOutput, PipelineSource, What, place_options
from waterclock.spark.runtime.describing import described
from waterclock.spark.runtime.filesystem import (
    REPLACED,
    file_names,
    move_if_free,
    move_into_place,
    remove_folder,
)
from waterclock.spark.runtime.partitions import MOST_CONNECTING, PARTITIONS, few_connecting
from waterclock.spark.runtime.settings import changed, java_heap
from waterclock.spark.runtime.workers import freezing_imports
from waterclock.spark.streaming.batch_messages import by_position
from waterclock.spark.streaming.batch_rows import Payloads, encoded, too_large
from waterclock.spark.streaming.batching import batches_of, rejected_of
from waterclock.spark.writing.message_writer import newest_micro_batch

_ENCODED_SCHEMA = (
    "id STRING, source STRING, start BIGINT, `end` BIGINT, closed_at BIGINT, reason STRING, count INT, outside INT,"
    " payload BINARY"
)
_FACTS = ("id", "source", "start", "end", "closed_at", "reason", "count", "outside")
_BATCHES_AT_ONCE = 500

_BYTES_TO_PYTHON = {"spark.sql.execution.arrow.maxBytesPerBatch": str(BYTES_AT_ONCE)}
"""Rows that hold payloads are passed to Python in pieces of this size; `session` sets 2 GiB, for small rows."""

PARQUET_OPTIONS = {
    # Parquet gathers a row group in Java's heap, and by default measures it for the first time after 100 rows. 100
    # batches of 12 MB take 1.2 GB, and the heap has 1 GB by default.
    "parquet.page.size.row.check.min": "1",
    "parquet.page.size.row.check.max": "1",
    "parquet.block.size": str(32 << 20),
    # The statistics of a column copy its least and its greatest value, once for the page and once for the row group.
    "parquet.column.statistics.enabled#payload": "false",
    # No two batches have the same bytes, so a dictionary of them would only be computed and dropped.
    "parquet.enable.dictionary#payload": "false",
}
"""Options of the Parquet files of outputs, for which a task gathers this size of a row group and one row more."""

COPIES_IN_JAVA = 4
"""Copies of a row that Java's heap holds at least while it writes Parquet or shuffles: the value, a row of Spark in an
array of twice the size, and the written form.
"""

MOST_READING_ALL = 8
"""Up to this many tasks, each reads the payloads of its own sources, which are in all files of a topic: 0.4 µs per
message of the topic. With more tasks, that costs more than moving encoded batches to the tasks that put them.
"""


class AlreadyWrittenError(InvalidArgumentError):
    """An output holds a micro-batch that this checkpoint has not written."""


def write_outcomes(
    pipeline: Pipeline,
    outcomes: DataFrame,
    *,
    run: str,
    producer: str,
    micro_batch: int,
    tasks: int | None = None,
    repeats: bool = True,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write batches and rejected messages to every output.

    Parameters
    ----------
    outcomes
        The result of `event_time_outcomes`, for a micro-batch or a whole replay.
    run
        The writer, for the names of files: a stream by its id, a replay by its range.
    producer
        The writer's name for topics: like ``run``, and for a replay also its pipeline.
    micro_batch
        Number of the micro-batch in the run.
    tasks
        Number of tasks that write messages to a topic, which identifies messages by their task; None: unchanged, which
        for a stream is the number of its state's partitions.
    repeats
        Whether this writer may have written the micro-batch before; otherwise existing Parquet of it belongs to a run
        on another checkpoint.
    check
        Called before each output is written, and before written Parquet becomes visible; raises if this run may not
        write.
    """
    # Message tables come last: if another output fails again and again, messages that a worker has acked in them may be
    # purged before the micro-batch is repeated, and would be put, and handled, once more.
    for output in sorted(pipeline.outputs, key=lambda each: each.kind == "table"):
        rows = batches_of(outcomes) if output.what == "batches" else rejected_of(outcomes)
        with described(outcomes.sparkSession, f"{pipeline.name} {micro_batch}: {output.what} to {output.name}"):
            check()
            if output.kind == "parquet":
                folder = _run_folder(output, run, micro_batch)
                write_parquet(rows, pipeline, folder, what=output.what, repeats=repeats, check=check)
                continue
            options = place_options(output.url, output.ledgers) | {output.kind: output.target}
            payloads = {"payloads": pipeline.source.topic, **_elsewhere(output, pipeline.source)}
            payloads |= pipeline.source.losses
            partitions = int(outcomes.sparkSession.conf.get(PARTITIONS) or 1)
            settings: Mapping[str, str] = {}
            if output.kind == "topic":
                if tasks is not None:
                    rows = rows.repartition(tasks, "source")
                elif partitions > MOST_CONNECTING:
                    rows = few_connecting(rows, "source")
                options |= {"producer": _producer(producer, output), "microBatch": str(micro_batch)} | payloads
            elif output.kind == "table":
                # Batches of a source in the order of event time, as its group requires; and batches of all sources
                # mixed, so that they share reads of a file.
                if partitions > MOST_READING_ALL:
                    rows = few_connecting(_encoded(rows, pipeline.source), "source")
                    settings = _BYTES_TO_PYTHON
                else:
                    options |= payloads
                rows = rows.sortWithinPartitions("start")
            with changed(outcomes.sparkSession, settings):
                rows.write.format("waterclock").options(**options).mode("append").save()


def refuse_written(
    spark: SparkSession, pipeline: Pipeline, run: str, micro_batch: int, check: Callable[[], None]
) -> None:
    """Check that a micro-batch has written no Parquet yet: otherwise the checkpoint is older than the output.

    Its messages would come again in other micro-batches, and be stored twice. The same happens if a copy of the
    checkpoint is in use.

    Parameters
    ----------
    check
        Raises if a later run has entered, which may have written that micro-batch.
    """
    for output in pipeline.outputs:
        if output.kind != "parquet":
            continue
        folder = _run_folder(output, run, micro_batch)
        try:
            _ = spark.read.parquet(folder).schema
        except PySparkException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                continue
        check()
        raise _already_written(pipeline, folder)


def _already_written(pipeline: Pipeline, folder: str) -> AlreadyWrittenError:
    return AlreadyWrittenError(
        f"pipeline {quoted(pipeline.name)}: {folder} already exists, so the checkpoint is older than the"
        " output, or a copy of the checkpoint is in use. Messages would be written twice. Remove that folder and"
        " the folders of later micro-batches of this run, or start with a new checkpoint and other outputs"
    )


def refuse_appended(pipeline: Pipeline, producer: str, micro_batch: int, check: Callable[[], None]) -> None:
    """Check that no topic holds a micro-batch, or a later one: see `refuse_written`."""
    for output in pipeline.outputs:
        if output.kind != "topic":
            continue
        with connect(output.url, output.ledgers) as database:
            newest = newest_micro_batch(database.topic(output.target), _producer(producer, output))
        if newest >= micro_batch:
            check()
            raise InvalidArgumentError(
                f"cannot start pipeline {quoted(pipeline.name)}: topic {quoted(output.target)} already holds messages"
                f" of micro-batch {newest}, but the checkpoint ends with {micro_batch - 1}. So the checkpoint is"
                " older than the topic, or a copy of the checkpoint is in use. Messages would be written twice. Start"
                " with a new checkpoint and other outputs, or give this output another name to write anyway"
            )


def _producer(producer: str, output: PipelineOutput) -> str:
    return short_source(f"{producer}-{output.name}")  # the two may be longer than a producer's name


def _elsewhere(output: PipelineOutput, source: PipelineSource) -> dict[str, str]:
    """Return the options that locate the payloads, if they are not in the output's own database."""
    if (output.url, output.ledgers) == (source.url, source.ledgers):
        return {}
    return place_options(source.url, source.ledgers, "payloadsUrl", "payloadsLedgers")


def _run_folder(output: PipelineOutput, run: str, micro_batch: int) -> str:
    """Name a folder of the run's own, which a repeat replaces; Spark reads all of them as one table."""
    return f"{output.target.rstrip('/')}/run={run}-{micro_batch:010d}"


def write_parquet(
    rows: DataFrame, pipeline: Pipeline, folder: str, *, what: What, repeats: bool, check: Callable[[], None]
) -> None:
    """Write a folder under a hidden name first: of two runs that write the same, neither sees the other's files."""
    if what == "batches":
        rows = _encoded(rows, pipeline.source)
    spark = rows.sparkSession
    target, _, name = folder.rpartition("/")
    if is_remote():
        # Spark writes to a hidden folder and moves that, but only if it replaces a part of a table.
        run = F.lit(name.partition("=")[2])
        writer = rows.withColumn("run", run).write.options(**PARQUET_OPTIONS)
        dynamic = writer.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        dynamic.partitionBy("run").parquet(target)
        return
    hidden = f"{target}/.{name}-{uuid.uuid4().hex}"
    try:
        rows.write.options(**PARQUET_OPTIONS).parquet(hidden)
        check()
        if repeats:
            move_into_place(spark, hidden, folder)
        else:
            _move_new(spark, pipeline, hidden, folder, check)
    except BaseException:
        with suppress(PySparkException, Py4JError):  # the first error counts
            remove_folder(spark, hidden)
        raise


def _move_new(spark: SparkSession, pipeline: Pipeline, hidden: str, folder: str, check: Callable[[], None]) -> None:
    if not move_if_free(spark, hidden, folder):
        check()
        raise _already_written(pipeline, folder)


def remove_unfinished(spark: SparkSession, pipeline: Pipeline, run: str, check: Callable[[], None]) -> None:
    """Delete unfinished files of killed runs, and show a folder again that a killed run was replacing.

    Parameters
    ----------
    check
        Raises if a later run has entered. Called between listing and deleting, so that none of its folders is listed.
    """
    if is_remote():
        return
    unfinished: list[str] = []
    replaced: dict[str, str] = {}
    for output in pipeline.outputs:
        if output.kind == "parquet":
            folder = output.target.rstrip("/")
            names = file_names(spark, folder)
            hidden = [name for name in names if name.startswith(f".run={run}-")]
            unfinished += [f"{folder}/{name}" for name in hidden]
            for name in hidden:
                shown = name[1:].removesuffix(REPLACED).rpartition("-")[0]
                if name.endswith(REPLACED) and shown not in names:
                    replaced[f"{folder}/{shown}"] = f"{folder}/{name}"
    check()
    # The killed run may have been overtaken, and the later one goes on behind that micro-batch.
    for shown, hidden in replaced.items():
        move_if_free(spark, hidden, shown)
    for folder in unfinished:
        remove_folder(spark, folder)


def _encoded(batches: DataFrame, source: PipelineSource) -> DataFrame:
    """Write batches as bytes in the tasks that read their payloads, each file once."""
    encode = freezing_imports(_encode, source=source, heap=java_heap(batches.sparkSession))
    return by_position(batches).mapInArrow(encode, _ENCODED_SCHEMA)


def _encode(batches: Iterator[pa.RecordBatch], source: PipelineSource, heap: int | None) -> Iterator[pa.RecordBatch]:
    with connect(source.url, source.ledgers) as database:
        topic = database.topic(source.topic)
        payloads = Payloads.to_write(topic, fail_on_data_loss=source.fail_on_data_loss, on_damage=source.on_damage)
        for rows, messages in encoded(batches, payloads):
            _refuse_exceeding(rows, messages, payloads, heap)
            facts = rows.select(_FACTS)
            for first in range(0, rows.num_rows, _BATCHES_AT_ONCE):
                payload = messages.slice(first, _BATCHES_AT_ONCE)
                yield facts.slice(first, _BATCHES_AT_ONCE).append_column("payload", payload)


def _refuse_exceeding(rows: pa.RecordBatch, messages: pa.BinaryArray, payloads: Payloads, heap: int | None) -> None:
    """Check that Java can hold each batch. Otherwise Java would end, and its error would not name the batch."""
    if heap is None or messages.nbytes * COPIES_IN_JAVA <= heap:
        return
    sizes = pc.call_function("binary_length", [messages]).to_numpy()
    row = int(np.argmax(sizes))
    if sizes[row] * COPIES_IN_JAVA > heap:
        limit = (
            f"Java's memory of {heap:,} bytes: they have {sizes[row]:,} bytes, and Java needs {COPIES_IN_JAVA} times"
            " the size of a batch"
        )
        remedy = "Raise spark.driver.memory, or on a cluster spark.executor.memory"
        raise too_large(rows.slice(row), payloads, limit, remedy)
