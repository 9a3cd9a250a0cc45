"""Batching of Spark DataFrames: the same batches as in one process, found on many cores or machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import IntegerType, LongType, StringType

from waterclock.batching.rule import EventTimeRule, OnConflict
from waterclock.errors import InvalidArgumentError
from waterclock.spark.judging import OUTCOMES_SCHEMA, judge
from waterclock.spark.packing import PACKED_SCHEMA, PLAIN, POSITIONED, UNPACKED_COLUMNS, pack, unpack
from waterclock.time import Duration

_NEEDED = {"source": StringType(), "stream": StringType(), "event_time": LongType(), "receive_time": LongType()}
_POSITION = {"ledger": LongType(), "entry": LongType(), "index": IntegerType()}
_REJECTED_SCHEMA = f"source STRING, reason STRING, {UNPACKED_COLUMNS}"


def event_time_batches(
    df: DataFrame,
    window: Duration = "500ms",
    max_delay: Duration = "400ms",
    max_lead: Duration = 0,
    on_conflict: OnConflict = "split",
) -> DataFrame:
    """Batch messages by the time at which they happened, as `waterclock.EventTimeBatcher` does for each source.

    Parameters
    ----------
    df
        Messages, with columns source and stream (STRING), event_time and receive_time (BIGINT ns) and, where they come
        from a topic, their position: ledger, entry (BIGINT) and index (INT). Other columns, such as the payload, are
        not read. With positions a source's messages are taken in that order, and a receive time that lies behind an
        earlier one counts as that one, as it does for a reader of the topic; without, each counts as it is.
    window, max_delay, max_lead, on_conflict
        As of `waterclock.EventTimeBatcher`.

    Returns
    -------
    DataFrame
        One row a batch: id (STRING, as `waterclock.Batch.id`), source, start, end, closed_at (BIGINT ns), reason
        (``"timeout"`` or ``"conflict"``: a replay is judged as if the clock had run to its end), count (INT), streams
        (ARRAY<STRING>) and messages (BINARY: their times, streams and positions in order of event time and stream, laid
        out as `waterclock.spark.packing` says).

    Raises
    ------
    InvalidArgumentError
        For a streaming DataFrame, a missing column or one of another type, and an option that cannot be meant.

    Notes
    -----
    The messages of one source meet in one task, which needs about 200 bytes of memory for each of them.
    `event_time_outcomes` gives the rejected messages from the same pass.
    """
    return batches_of(event_time_outcomes(df, window, max_delay, max_lead, on_conflict))


def event_time_outcomes(
    df: DataFrame,
    window: Duration = "500ms",
    max_delay: Duration = "400ms",
    max_lead: Duration = 0,
    on_conflict: OnConflict = "split",
) -> DataFrame:
    """Find the batch of every message, or why it is in none, as packed rows to be persisted and read twice.

    Takes and raises what `event_time_batches` does.

    Returns
    -------
    DataFrame
        Columns `waterclock.spark.judging.OUTCOMES_SCHEMA`, for `batches_of` and `rejected_of`. The sum of ``count`` by
        ``rejection`` says how many messages met which fate.
    """
    rule = EventTimeRule.checked(window, max_delay, max_lead, on_conflict)
    record = _record(df)
    # Only what is selected crosses into Python, and only that is read from the files.
    return (
        df.select("source", *(record.names or ()))
        .mapInArrow(partial(pack, record=record), PACKED_SCHEMA)
        .repartition("source")
        .sortWithinPartitions("source")
        .mapInArrow(partial(judge, record=record, rule=rule), OUTCOMES_SCHEMA)
    )


def batches_of(outcomes: DataFrame) -> DataFrame:
    """Take the batches out of what `event_time_outcomes` gave; one row each, as `event_time_batches` describes it."""
    width = F.expr("length(messages) div packed")
    batch = F.col("batch")
    return (
        outcomes.where("rejection IS NULL")
        .select("source", "streams", "messages", F.col("count").alias("packed"), F.explode("batches").alias("batch"))
        .select(
            F.concat("source", F.lit("@"), batch["start"]).alias("id"),
            "source",
            batch["start"].alias("start"),
            batch["end"].alias("end"),
            batch["closed_at"].alias("closed_at"),
            F.when(batch["conflict"], "conflict").otherwise("timeout").alias("reason"),
            batch["count"].alias("count"),
            "streams",
            F.substring("messages", batch["first"] * width + 1, batch["count"] * width).alias("messages"),
        )
    )


def rejected_of(outcomes: DataFrame) -> DataFrame:
    """Take the rejected messages out of what `event_time_outcomes` gave.

    Returns
    -------
    DataFrame
        One row a message: source, reason (``"late"``, ``"future"``, ``"duplicate"`` or ``"replaced"``), stream,
        event_time, receive_time (BIGINT ns), ledger, entry, index (null where the messages came without position).
    """
    return outcomes.where("rejection IS NOT NULL").mapInArrow(_rejected, _REJECTED_SCHEMA)


def _rejected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows, columns = unpack(batch)
        of_rows = [batch.column(name).take(pa.array(rows)) for name in ("source", "rejection")]
        names = ["source", "reason", *columns]
        yield pa.record_batch([*of_rows, *columns.values()], names)


def _record(df: DataFrame) -> np.dtype[Any]:
    """Check the columns, and say whether messages have positions."""
    if df.isStreaming:
        raise InvalidArgumentError(
            "df: a streaming DataFrame cannot be batched yet; read it with spark.read instead of spark.readStream"
        )
    types = {field.name: field.dataType for field in df.schema}
    for name, wanted in _NEEDED.items():
        if name not in types:
            raise InvalidArgumentError(f"df: there is no column {name!r}; it has {', '.join(types)}")
        if types[name] != wanted:
            remedy = ", nanoseconds since the epoch" if wanted == LongType() else ""
            raise InvalidArgumentError(
                f"df: column {name!r} is {types[name].simpleString()}; it must be {wanted.simpleString()}{remedy}"
            )
    has_positions = all(types.get(name) == wanted for name, wanted in _POSITION.items())
    return POSITIONED if has_positions else PLAIN
