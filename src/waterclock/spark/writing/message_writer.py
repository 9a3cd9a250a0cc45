"""Appends messages to a topic exactly once, even if Spark repeats tasks or micro-batches.

Every task is a producer of the topic. The producer's name identifies the writer and the partition, and its numbers
identify the micro-batch and the row, so the topic recognizes a repeated append. The task sorts its rows first, because
a retry may deliver them in another order.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from waterclock._support.quoting import quoted
from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.spark.options import plainly
from waterclock.spark.pace import MOST_BYTES
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.spark.streaming.batch_rows import POSITION, Payloads, found_at
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.spark.writing.writer import Writer
from waterclock.topics.finding.looking_up import TooManyBytesError
from waterclock.topics.model.producer_state import NumbersUsedError
from waterclock.topics.topic import Topic
from waterclock.topics.writing.producers import forget_producers, producers_named

REASON_HEADER = "waterclock.rejected"
"""Header of a rejected message: why it is in no batch."""

POSITION_HEADER = "waterclock.position"
"""Header of a rejected message: its position in the topic that it was read from."""

ENTRY_MESSAGES = 10_000
"""Messages that a writer appends at a time."""

_HEADERS = MESSAGE_SCHEMA.field("headers").type
_ROW_BITS = 32
# The properties of a stream that Spark passes to its tasks.
_QUERY_KEY = "sql.streaming.queryId"
_MICRO_BATCH_KEY = "streaming.sql.batchId"
_log = logging.getLogger(__name__)

_ORDER = ("event_time", "source", "stream", "receive_time", "publish_time", "reason", "payload")


class _WriteTask(NamedTuple):
    """The task's identity: the stream's id and micro-batch, if it has one, and its partition."""

    query: str | None
    micro_batch: int
    partition: int

    @classmethod
    def running(cls) -> _WriteTask:
        context = TaskContext.get()
        if context is None:
            return cls(None, 0, 0)
        query = context.getLocalProperty(_QUERY_KEY)
        micro_batch = context.getLocalProperty(_MICRO_BATCH_KEY) if query else None
        return cls(query, int(micro_batch or 0), context.partitionId())


class MessageWriter(Writer):
    """Writes the rows of a DataFrame, or of a stream's micro-batch, as messages."""

    def __init__(self, options: WriteOptions, topic: str, *, streaming: bool) -> None:
        self._options = options
        self._topic = topic
        self._streaming = streaming
        self._write = f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's messages, in the order of their positions or, without positions, of their times."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return WriterCommitMessage()
        rows = _in_order(pa.Table.from_batches(batches))
        task = _WriteTask.running()
        if self._options.micro_batch is not None:
            task = task._replace(micro_batch=self._options.micro_batch)
        options = self._options
        with plainly(), options.connect() as database, options.open_payloads(database) as payloads:
            topic = database.topic(self._topic)
            producer = f"{self._producer(task)}-{task.partition}"
            sequence = task.micro_batch << _ROW_BITS
            for messages in _messages(rows, payloads):
                with _in_words_of_streams(topic, task):
                    appended = topic.append(messages, producer=producer, sequence=sequence)
                sequence += len(messages)
                if appended.rejected:
                    count, reason = len(appended.rejected), appended.rejected[0].reason
                    _log.warning("the topic rejected %d messages, the first: %s", count, reason)
        freeze_imports()
        return WriterCommitMessage()

    def finish(self) -> None:
        """Forget the producer, if no task will use its name again."""
        if self._streaming or self._options.producer is not None:
            return
        with plainly(), self._options.connect() as database:
            forget_producers(database.topic(self._topic).storage, f"{self._write}-")

    def _producer(self, task: _WriteTask) -> str:
        if self._options.producer is not None:
            return self._options.producer
        if not self._streaming:
            return self._write
        if task.query is None:
            raise SchemaError(
                "cannot write to a topic from this stream: Spark did not name the query, so a repeated write could not"
                " be recognised. Write in foreachBatch, with the options producer and microBatch"
            )
        return f"spark-{task.query}"


def newest_micro_batch(topic: Topic, producer: str) -> int:
    """Return the number of a writer's newest micro-batch whose messages a topic holds; -1 if it holds none."""
    states = producers_named(topic.storage, f"{producer}-").values()
    return max((state.last >> _ROW_BITS for state in states if state.last is not None), default=-1)


@contextmanager
def _in_words_of_streams(topic: Topic, task: _WriteTask) -> Generator[None]:
    """Explain to a query's user that its numbers were used for other messages."""
    try:
        yield
    except NumbersUsedError as error:
        raise InvalidArgumentError(
            f"topic {quoted(topic.name)} already holds other messages of micro-batch {task.micro_batch} of"
            " this query: the checkpoint is older than the output, or the input has changed. To write anyway,"
            " use another producer (for an output in a pipeline's file, another name) or a new checkpoint."
            f" ({error})"
        ) from error


def _in_order(rows: pa.Table) -> pa.Table:
    if set(POSITION) <= set(rows.column_names) and not rows.column("ledger").null_count:
        return rows.sort_by([(name, "ascending") for name in POSITION])
    keys = rows.select([name for name in _ORDER if name in rows.column_names])
    if "headers" in rows.column_names:
        texts = pa.array([json.dumps(headers) for headers in rows.column("headers").to_pylist()])
        keys = keys.append_column("headers", texts)
    order = [(name, "ascending") for name in keys.column_names]
    return rows.take(pc.call_function("sort_indices", [keys], pc.SortOptions(order)))


def _messages(rows: pa.Table, payloads: Payloads | None) -> Iterator[pa.Table]:
    """Yield the messages to append at a time: fewer if their payloads are large, at the same rows in each attempt."""
    left = [rows.slice(first, ENTRY_MESSAGES) for first in range(0, rows.num_rows, ENTRY_MESSAGES)][::-1]
    while left:
        some = left.pop()
        try:
            yield _with_headers(some, payloads)
        except TooManyBytesError:
            half = some.num_rows // 2
            left += [some.slice(half), some.slice(0, half)]


def _with_headers(rows: pa.Table, payloads: Payloads | None) -> pa.Table:
    """Return the messages to append; a column ``reason`` and the position become headers."""
    if payloads is None:
        messages = rows.select([name for name in MESSAGE_SCHEMA.names if name in rows.column_names])
    else:
        most_bytes = None if rows.num_rows == 1 else MOST_BYTES
        messages = found_at(payloads, rows, most_bytes).select(MESSAGE_SCHEMA.names)
    if "reason" not in rows.column_names:
        return messages
    added = {REASON_HEADER: rows.column("reason").cast(pa.string())}
    if set(POSITION) <= set(rows.column_names):
        places = [pc.cast(rows.column(name), pa.string()) for name in POSITION]
        added[POSITION_HEADER] = pc.call_function("binary_join_element_wise", [*places, ":"])
    if "headers" in messages.column_names:
        column = joined_headers(messages.column("headers"), added)
        return messages.set_column(messages.column_names.index("headers"), "headers", column)
    return messages.append_column("headers", joined_headers(pa.chunked_array([pa.nulls(len(rows), _HEADERS)]), added))


def joined_headers(headers: pa.ChunkedArray, added: Mapping[str, pa.ChunkedArray]) -> pa.MapArray:
    """Append one header of each name to the headers of each message, by column: as lists a message takes 50 µs."""
    old = headers.cast(_HEADERS).take(pa.array(np.arange(len(headers)))).combine_chunks()  # without offsets of slices
    held = np.diff(old.offsets.to_numpy())
    offsets = np.append(0, np.cumsum(held + len(added))).astype(np.int32)
    pairs = len(old.keys)
    places = np.full(offsets[-1], -1)
    for number in range(len(added)):
        places[offsets[1:] - len(added) + number] = pairs + number * len(old) + np.arange(len(old))
    places[places < 0] = np.arange(pairs)
    chosen = pa.array(places)
    names = pa.concat_arrays([old.keys, *(pa.repeat(name, len(old)) for name in added)])
    values = pa.concat_arrays([old.items, *(value.combine_chunks() for value in added.values())])
    return pa.MapArray.from_arrays(pa.array(offsets), names.take(chosen), values.take(chosen), _HEADERS)
