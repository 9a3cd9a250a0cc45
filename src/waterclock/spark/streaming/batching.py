"""Batches Spark DataFrames, on many cores or machines. The batches are the same as in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType

from waterclock._support.quoting import quoted
from waterclock.batching.batch import LONGEST_SOURCE, NUL, SOURCE_BEGINNING, SOURCE_DIGITS
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.event_time.rule import EventTimeRule, OnConflict
from waterclock.batching.rate.by_message.aligned import Clocks
from waterclock.batching.rate.rule import Gated
from waterclock.columnar.packing import (
    CLOCKED_SCHEMA,
    UNPACKED_COLUMNS,
    pack,
    unpack,
)
from waterclock.columnar.records import NUMBERED, PLAIN, POSITIONED
from waterclock.columnar.streams.id_stream import judge_by_id
from waterclock.columnar.streams.judging import judge, unsynchronised, without_run
from waterclock.columnar.streams.outcome_rows import OUTCOMES_SCHEMA
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import LengthFrom, judge_by_rate
from waterclock.errors import InvalidArgumentError
from waterclock.spark.buckets import (
    BUCKETED_SCHEMA,
    BUCKETS,
    buckets_of,
    checked_buckets,
    id_header_of,
    pack_to_buckets,
    to_buckets,
)
from waterclock.spark.reading.message_columns import message_columns, missing_position, number_column
from waterclock.spark.runtime.workers import freezing_imports
from waterclock.spark.streaming.stateful import event_time_stream, id_stream, rate_stream
from waterclock.time import Duration, to_duration

_PACKED: dict[str, DataType] = {
    "source": StringType(),
    "streams": ArrayType(StringType()),
    "count": IntegerType(),
    "messages": BinaryType(),
    "clock": LongType(),
}
_NEEDS_POSITION = (
    "df must have a column {column!r}: batching by {rule} needs the position (ledger, entry, index), which"
    ' shows in which order messages arrived. Read the topic with format "waterclock" and option "packed"'
)
_REJECTED_SCHEMA = f"source STRING, reason STRING, {UNPACKED_COLUMNS}"


def event_time_batches(
    df: DataFrame,
    window: Duration = "500ms",
    max_delay: Duration = "400ms",
    max_lead: Duration = 0,
    on_conflict: OnConflict | None = None,
    max_skew: Duration = "10s",
    buckets: int | None = None,
    gap: Duration | None = None,
    boundaries: Iterable[str] | None = None,
) -> DataFrame:
    """Batch messages by the time at which they happened, as `waterclock.EventTimeBatcher` does for each source.

    Parameters
    ----------
    df
        Messages, batch or streaming: a topic read with the option ``packed`` of the format ``waterclock``, a stream
        with ``buckets``, or anything with columns source and stream (STRING), event_time and receive_time (BIGINT ns,
        or TIMESTAMP, which ends at microseconds) and, if they come from a topic, their position: ledger, entry (BIGINT)
        and index (INT). Other columns, such as the payload, are not read. With positions, a source's messages are taken
        in that order, and a receive time behind an earlier one counts as the earlier one, as for a reader of the topic.
        Without positions, each receive time counts as it is; in a stream, unless an earlier micro-batch was already
        further.
    window, max_delay, max_lead, on_conflict, gap, boundaries
        As of `waterclock.EventTimeBatcher`.
    max_skew
        For a stream only: how far a receive time may be behind the newest one of earlier micro-batches, of any source.
        The windows of a source that falls silent close this much later. See Notes.
    buckets
        For a stream only: into how many parts its state is divided, and so how many tasks can batch at the same time. A
        checkpoint is tied to its number of buckets. Default: the option ``buckets`` of the format ``waterclock``, or
        else 64.

    Returns
    -------
    DataFrame
        One row per batch: id (STRING, as `waterclock.Batch.id`), source, start, end, closed_at (BIGINT ns), reason
        (``"timeout"``, ``"gap"``, ``"conflict"`` or ``"boundary"``: a replay acts as if the clock had run to its end),
        run (BIGINT ns) and number (BIGINT, null by time), as of `waterclock.Batch`, count (INT), outside (INT, as the
        sum of `waterclock.Batch.outside`), offsets (MAP<STRING, BIGINT>, as of `waterclock.Batch`; null unless clocks
        are aligned), streams (ARRAY<STRING>) and messages (BINARY: their times, streams and positions in order of event
        time and stream, laid out as `waterclock.columnar.records` says).

    Raises
    ------
    InvalidArgumentError
        For a missing column or one of another type, an invalid option, and a streaming DataFrame in a
        session whose streaming state is not in RocksDB.

    Notes
    -----
    All messages of a source are batched in one task. If they have positions, the task batches a million at a time, and
    its memory holds these and the open windows; otherwise it holds about 200 bytes for each message.
    `event_time_outcomes` returns the rejected messages from the same pass.

    In a stream, a source's own messages close its windows. If a source falls silent, the receive times of other sources
    close them: once these have passed t + ``max_skew``, the stream calls ``advance(t)``, a promise that nothing
    received at or before t comes later. While the topic keeps this promise, the batches equal those of a replay. A
    message that breaks it is treated as received now. It may be rejected as late, but it is neither lost nor added to a
    batch that was already returned. If all sources are silent, nothing closes until a message arrives.
    """
    return batches_of(
        event_time_outcomes(df, window, max_delay, max_lead, on_conflict, max_skew, buckets, gap, boundaries)
    )


def event_time_outcomes(
    df: DataFrame,
    window: Duration = "500ms",
    max_delay: Duration = "400ms",
    max_lead: Duration = 0,
    on_conflict: OnConflict | None = None,
    max_skew: Duration = "10s",
    buckets: int | None = None,
    gap: Duration | None = None,
    boundaries: Iterable[str] | None = None,
    *,
    ended: bool = True,
    span: ReplayRange | None = None,
) -> DataFrame:
    """Find the batch of every message, or why it is in none, as packed rows to be persisted and read twice.

    Takes and raises what `event_time_batches` does.

    Parameters
    ----------
    ended
        For a replay only: whether there are no later messages. False leaves out the last batches of each source, which
        later messages could still change: those that the source's own receive times have not closed.
    span
        For a replay with positions only: return the outcomes of this range, from messages that reach beyond it.

    Returns
    -------
    DataFrame
        Columns `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`, for `batches_of` and `rejected_of`. The sum
        of ``count`` by ``rejection`` is the number of messages with each outcome. For a stream, take both from the
        DataFrame that ``foreachBatch`` gets: two queries would batch twice.
    """
    rule = EventTimeRule.checked(window, max_delay, max_lead, on_conflict, gap, boundaries)
    skew = to_duration(max_skew, "max_skew")
    buckets = _buckets(df, buckets)
    df, record = _messages(df)
    if df.isStreaming:
        return event_time_stream(_bucketed(df, record, buckets), rule, record, skew, buckets)
    return _by_source(_packed(df, record), record).mapInArrow(
        freezing_imports(judge, record=record, rule=rule, ended=ended, span=span), OUTCOMES_SCHEMA
    )


def rate_aware_batches(
    df: DataFrame,
    batch_length: Duration = "1s",
    timeout: Duration | float | None = None,
    gated: Gated = True,
    buckets: int | None = None,
    forget_after: Duration | None = None,
    max_skew: Duration = "10s",
    clocks: Clocks = "as_sent",
    max_disorder: Duration = 0,
    boundaries: Iterable[str] | None = None,
) -> DataFrame:
    """Batch messages by the rates of their streams, as `waterclock.RateAwareBatcher` does for each source.

    Parameters
    ----------
    df
        Messages of a topic, batch or streaming: read with the options that `event_time_batches` names, or with columns
        source and stream (STRING), event_time and receive_time (BIGINT ns, or TIMESTAMP) and their position: ledger,
        entry (BIGINT) and index (INT). The messages of one entry arrived together: a source's share of it is one call
        of its batcher.
    batch_length, timeout, gated, forget_after, clocks, max_disorder, boundaries
        As of `waterclock.RateAwareBatcher`; a function for ``gated`` must be one that can be pickled. Without
        ``forget_after`` a stream's state keeps every source that it has ever seen.
    buckets
        As of `event_time_batches`.
    max_skew
        Of a stream with ``forget_after`` only: how far a receive time may lie behind the newest one of earlier
        micro-batches, of any source. See Notes.

    Returns
    -------
    DataFrame
        One row per batch, as `event_time_batches` says. A replay ends by closing open windows, reason ``"flush"``, so
        that no message is missing; a stream never does so.

    Raises
    ------
    InvalidArgumentError
        For a missing column, also of the position, or one of another type, an invalid option, and a
        streaming DataFrame in a session whose streaming state is not in RocksDB.

    Notes
    -----
    A stream must deliver entries whole and in order, as the format ``waterclock`` does; it fails if one continues in a
    later micro-batch. The part of the stall rule that looks at a clock does not apply, so that replays agree; the part
    that looks at event times does. No message is rejected.

    With ``forget_after``, a call that comes after a silence begins its source again, live and in a replay. A stream
    does not wait for that call: once the receive times of other sources have passed the silence's end by ``max_skew``,
    it returns the source's open windows and forgets its state. While the topic keeps ``max_skew``, the batches are
    those of a replay. A message which breaks it begins a forgotten source again.
    """
    options = (df, batch_length, timeout, gated, buckets, forget_after, max_skew, clocks, max_disorder, boundaries)
    return batches_of(rate_aware_outcomes(*options))


def rate_aware_outcomes(
    df: DataFrame,
    batch_length: Duration = "1s",
    timeout: Duration | float | None = None,
    gated: Gated = True,
    buckets: int | None = None,
    forget_after: Duration | None = None,
    max_skew: Duration = "10s",
    clocks: Clocks = "as_sent",
    max_disorder: Duration = 0,
    boundaries: Iterable[str] | None = None,
    *,
    ended: bool = True,
    span: ReplayRange | None = None,
    lengths: Sequence[LengthFrom] = (),
) -> DataFrame:
    """Find the batch of every message, as packed rows for `batches_of`.

    Takes and raises what `rate_aware_batches` does.

    Parameters
    ----------
    ended
        Of a replay only: whether these messages are the last. False leaves open windows out.
    span
        Of a replay only: give the batches that start in this range.
    lengths
        Of a replay only: the batch lengths of a pipeline's stream, if they adapt, in order of the topic.

    Returns
    -------
    DataFrame
        Columns `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`; ``rejection`` is null everywhere.
    """
    options = RateOptions.checked(batch_length, timeout, gated, forget_after, clocks, max_disorder, boundaries)
    skew = to_duration(max_skew, "max_skew")
    buckets = _buckets(df, buckets)
    messages, record = _messages(df)
    if record != POSITIONED:
        raise InvalidArgumentError(_NEEDS_POSITION.format(column=missing_position(df)[0], rule="rate"))
    if messages.isStreaming:
        return rate_stream(_bucketed(messages, record, buckets), options, skew, buckets)
    return _by_source(_packed(messages, record), record).mapInArrow(
        freezing_imports(judge_by_rate, options=options, ended=ended, span=span, lengths=lengths),
        OUTCOMES_SCHEMA,
    )


def id_batches(
    df: DataFrame,
    id_of: str | Column,
    max_delay: Duration = "2s",
    streams: Iterable[str] | None = None,
    max_skew: Duration = "10s",
    buckets: int | None = None,
) -> DataFrame:
    """Batch messages by an integer id that they carry, as `waterclock.IdBatcher` does for each source.

    Parameters
    ----------
    df
        Messages of a topic, batch or streaming: read with the options ``packed`` or ``buckets``, and ``idOf``, of the
        format ``waterclock``; or with the columns that `rate_aware_batches` names and, if ``id_of`` names a header,
        headers (MAP<STRING, STRING>).
    id_of
        The name of the header that holds the id; or an integer column, if the messages are rows.
    max_delay, streams
        As of `waterclock.IdBatcher`.
    max_skew, buckets
        As of `event_time_batches`.

    Returns
    -------
    DataFrame
        One row per batch, as `event_time_batches` says; ``number`` is the id. The reason is ``"complete"`` or
        ``"timeout"``.

    Raises
    ------
    InvalidArgumentError
        For a missing column, also of the position, or one of another type, an invalid option, packed messages read with
        another ``idOf``, and a streaming DataFrame in a session whose streaming state is not in RocksDB.

    Notes
    -----
    The Notes of `event_time_batches` on clocks and streams apply. A stream's state keeps every source that it has seen,
    with its returned ids.
    """
    return batches_of(id_outcomes(df, id_of, max_delay, streams, max_skew, buckets))


def id_outcomes(
    df: DataFrame,
    id_of: str | Column,
    max_delay: Duration = "2s",
    streams: Iterable[str] | None = None,
    max_skew: Duration = "10s",
    buckets: int | None = None,
    *,
    ended: bool = True,
    span: ReplayRange | None = None,
) -> DataFrame:
    """Find the batch of every message, or why it is in none, as packed rows for `batches_of` and `rejected_of`.

    Takes and raises what `id_batches` does.

    Parameters
    ----------
    ended
        Of a replay only: whether these messages are the last. False leaves out batches that are open at their source's
        last receive time.
    span
        Of a replay only: return the batches that start in this range, and the messages rejected when received in it.

    Returns
    -------
    DataFrame
        Columns `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.
    """
    rule = IdRule.checked("a column" if isinstance(id_of, Column) else id_of, max_delay, streams)
    skew = to_duration(max_skew, "max_skew")
    buckets = _buckets(df, buckets)
    messages = _numbered(df, id_of)
    if messages.isStreaming:
        return id_stream(_bucketed(messages, NUMBERED, buckets), rule, skew, buckets)
    return _by_source(_packed(messages, NUMBERED), NUMBERED).mapInArrow(
        freezing_imports(judge_by_id, rule=rule, ended=ended, span=span), OUTCOMES_SCHEMA
    )


def unsynchronised_sources(packed: DataFrame, rule: EventTimeRule, span: ReplayRange) -> DataFrame:
    """Find the sources, a row each, whose windows in a range depend on messages before those of ``packed``."""
    find = freezing_imports(unsynchronised, rule=rule, span=span)
    return _by_source(packed, POSITIONED).mapInArrow(find, "source STRING")


def sources_without_run(packed: DataFrame, rule: EventTimeRule, span: ReplayRange) -> DataFrame:
    """Find the sources, a row each, that have a batch in a range whose run began before the messages of ``packed``."""
    find = freezing_imports(without_run, rule=rule, span=span)
    return _by_source(packed, POSITIONED).mapInArrow(find, "source STRING")


def _buckets(df: DataFrame, wanted: int | None) -> int:
    read_with = buckets_of(df.schema)
    buckets = checked_buckets(wanted if wanted is not None else read_with or BUCKETS)
    if read_with is not None and read_with != buckets:
        raise InvalidArgumentError(
            f"buckets must be set in one place only, got {buckets} in this call and {read_with} in df"
        )
    return buckets


def _is_packed(df: DataFrame) -> bool:
    types = {field.name: field.dataType for field in df.schema}
    return all(types.get(name) == wanted for name, wanted in _PACKED.items())


def _packed(df: DataFrame, record: np.dtype[Any]) -> DataFrame:
    """Return messages as packed rows."""
    if _is_packed(df):
        return df.select(*_PACKED)
    return df.mapInArrow(freezing_imports(pack, record=record), CLOCKED_SCHEMA)


def _bucketed(df: DataFrame, record: np.dtype[Any], buckets: int) -> DataFrame:
    """Return messages gathered by the bucket of their source."""
    if buckets_of(df.schema) is not None:
        return df
    if _is_packed(df):
        gather = freezing_imports(to_buckets, record=record, buckets=buckets)
        return df.select(*_PACKED).mapInArrow(gather, BUCKETED_SCHEMA)
    return df.mapInArrow(freezing_imports(pack_to_buckets, record=record, buckets=buckets), BUCKETED_SCHEMA)


def _by_source(packed: DataFrame, record: np.dtype[Any]) -> DataFrame:
    """Bring the rows of each source together, one after another, those with positions in order of their first."""
    packed = packed.drop("clock")
    if record == PLAIN:
        return packed.repartition("source").sortWithinPartitions("source")
    # A column of its own, or the messages would be copied at every comparison.
    placed = packed.withColumn("first", first_place()).repartition("source")
    # If it stays, no row is copied once more; the functions that judge leave it aside.
    return placed.sortWithinPartitions("source", "first")


def first_place(parts: Sequence[str] = ("ledger", "entry", "index")) -> Column:
    """Return the first position in a row's ``messages``, or parts of it, as bytes in the same order."""
    # The numbers are little-endian, and bytes are compared from the first on.
    fields: list[Any] = [value for name, value in (POSITIONED.fields or {}).items() if name in parts]
    turned = [offset + kind.itemsize - byte for kind, offset, *_ in fields for byte in range(kind.itemsize)]
    return F.concat(*(F.substring("messages", byte, 1) for byte in turned))


def batches_of(outcomes: DataFrame) -> DataFrame:
    """Take the batches out of outcomes; one row each, as `event_time_batches` describes it."""
    width = F.expr("length(messages) div packed")
    batch = F.col("batch")
    return (
        outcomes.where("rejection IS NULL")
        .select("source", "streams", "messages", F.col("count").alias("packed"), F.explode("batches").alias("batch"))
        .select(
            F.concat(_short_source(), F.lit("@"), F.coalesce(batch["number"], batch["start"])).alias("id"),
            "source",
            batch["start"].alias("start"),
            batch["end"].alias("end"),
            batch["closed_at"].alias("closed_at"),
            batch["reason"].alias("reason"),
            batch["run"].alias("run"),
            batch["number"].alias("number"),
            batch["count"].alias("count"),
            batch["outside"].alias("outside"),
            batch["offsets"].alias("offsets"),
            "streams",
            F.substring("messages", batch["first"] * width + 1, batch["count"] * width).alias("messages"),
        )
    )


def _short_source() -> Column:
    """Return the expression for `waterclock.batching.batch.short_source` of the column ``source``."""
    digits = F.substring(F.sha2("source", 256), 1, SOURCE_DIGITS)
    beginning = F.replace(F.substring("source", 1, SOURCE_BEGINNING), F.lit(NUL), F.lit(""))
    whole = (F.length("source") <= LONGEST_SOURCE) & ~F.contains("source", F.lit(NUL))
    return F.when(whole, F.col("source")).otherwise(F.concat(beginning, F.lit("~"), digits))


def rejected_of(outcomes: DataFrame) -> DataFrame:
    """Select the rejected messages from the result of `event_time_outcomes`.

    Returns
    -------
    DataFrame
        One row per message: source, reason (as of `waterclock.batching.batch.Rejection`), stream,
        event_time, receive_time (BIGINT ns), ledger, entry, index (null if the messages came without position).
    """
    return outcomes.where("rejection IS NOT NULL").mapInArrow(freezing_imports(_rejected), _REJECTED_SCHEMA)


def _rejected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows, columns = unpack(batch)
        of_rows = [batch.column(name).take(pa.array(rows)) for name in ("source", "rejection")]
        names = ["source", "reason", *columns]
        yield pa.record_batch([*of_rows, *columns.values()], names)


def _numbered(df: DataFrame, id_of: str | Column) -> DataFrame:
    """Check the columns, and take those that batching by id reads."""
    if _is_packed(df) or buckets_of(df.schema) is not None:
        read_with = id_header_of(df.schema)
        if isinstance(id_of, Column) or read_with != id_of:
            raise InvalidArgumentError(
                f"id_of must equal the option idOf with which df was read, got {quoted(id_of)} in this call and"
                f" {quoted(read_with)} in df"
            )
        return df
    if missing := missing_position(df):
        raise InvalidArgumentError(_NEEDS_POSITION.format(column=missing[0], rule="id"))
    return message_columns(df, number_column(df, id_of).alias("number"))


def _messages(df: DataFrame) -> tuple[DataFrame, np.dtype[Any]]:
    """Check the columns, and take those that batching reads; and say whether messages have positions."""
    if _is_packed(df) or buckets_of(df.schema) is not None:
        return df, POSITIONED
    messages = message_columns(df)
    return messages, POSITIONED if "index" in messages.columns else PLAIN
