"""Writes to Waterclock on Spark: batches into a message table, messages into a topic, each exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.arrow import MESSAGE_SCHEMA, POSITION_FIELDS, POSITIONED_SCHEMA, from_arrow
from waterclock.batching.batch import Batch
from waterclock.connection import Database, connect
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.spark.options import needed, refuse_unknown
from waterclock.spark.packing import unpack
from waterclock.topics.topic import Topic

REASON_HEADER = "waterclock.rejected"
"""Header of a rejected message: why it is in no batch."""

POSITION_HEADER = "waterclock.position"
"""Header of a rejected message: where it stood in the topic that it was read from."""

ENTRY_MESSAGES = 10_000
"""Messages a writer appends to a topic at a time."""

BATCHES_AT_ONCE = 500
"""Batches a writer puts into a message table in one transaction."""

_WRITE_OPTIONS = frozenset({"url", "ledgers", "table", "topic", "payloads"})
_BATCH_COLUMNS = ("id", "source", "start", "end", "closed_at", "reason", "streams", "count", "messages")
_MESSAGE_COLUMNS = ("source", "stream", "event_time")
_POSITION = tuple(field.name for field in POSITION_FIELDS)


class WriteOptions(NamedTuple):
    """The options of a write, checked.

    Attributes
    ----------
    url, ledgers
        What to open.
    table, topic
        Where to write: exactly one of them is given.
    payloads
        Topic in which the messages' payloads lie, found by position; None: what is written has none.
    """

    url: str
    ledgers: str | None
    table: str | None
    topic: str | None
    payloads: str | None

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check what the user gave, and that what it names exists.

        Raises
        ------
        InvalidArgumentError
            Naming the option that is missing, unknown or has a wrong value.
        NotFoundError
            Where the table or a topic does not exist.
        """
        given = {name.lower(): value for name, value in options.items()}
        refuse_unknown(given, _WRITE_OPTIONS)
        table, topic = given.get("table"), given.get("topic")
        if (table is None) == (topic is None):
            raise InvalidArgumentError(f"the options table ({table}) and topic ({topic}): give one of them")
        checked = cls(needed(given, "url"), given.get("ledgers"), table, topic, given.get("payloads"))
        with connect(checked.url, checked.ledgers) as database:
            if table is not None:
                database.table(table)
            for name in filter(None, (topic, checked.payloads)):
                database.topic(name)
        return checked


def make_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> DataSourceArrowWriter:
    """Choose the writer for a checked write of rows with this schema."""
    if overwrite:
        raise InvalidArgumentError('mode "overwrite" would delete what is there; use mode "append"')
    needs = _MESSAGE_COLUMNS if options.table is None else _BATCH_COLUMNS
    if missing := [name for name in needs if name not in schema.fieldNames()]:
        raise SchemaError(f"the rows to write lack the column {missing[0]!r}; they have {schema.fieldNames()}")
    if options.table is not None:
        return BatchWriter(options, options.table)
    if options.payloads is not None and not set(_POSITION) <= set(schema.fieldNames()):
        raise SchemaError(f"payloads: the rows have no position ({', '.join(_POSITION)}) by which to find them")
    return MessageWriter(options, str(options.topic))


class BatchWriter(DataSourceArrowWriter):
    """Puts batches into a message table. A batch's id is the message's, so writing one again changes nothing."""

    def __init__(self, options: WriteOptions, table: str) -> None:
        self._options = options
        self._table = table

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's batches, some at a time."""
        with connect(self._options.url, self._options.ledgers) as database:
            table = database.table(self._table)
            for rows in iterator:
                for first in range(0, rows.num_rows, BATCHES_AT_ONCE):
                    some = rows.slice(first, BATCHES_AT_ONCE)
                    messages = _messages(some, _payloads(database, self._options))
                    columns = (
                        some.column("id").to_pylist(),
                        some.column("source").to_pylist(),
                        _written(some, messages),
                    )
                    table.put_many(
                        {"id": name, "group": source, "payload": payload}
                        for name, source, payload in zip(*columns, strict=True)
                    )
        return WriterCommitMessage()


class MessageWriter(DataSourceArrowWriter):
    """Appends messages to a topic. Those with positions are numbered, so that a task tried again adds nothing."""

    def __init__(self, options: WriteOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._write = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's messages, in the order of their positions."""
        batches = list(iterator)
        if not any(batch.num_rows for batch in batches):
            return WriterCommitMessage()
        rows = pa.Table.from_batches(batches)
        positioned = set(_POSITION) <= set(rows.column_names)
        if positioned:
            # Rows arrive in another order when the task is tried again; their positions give them a fixed one.
            rows = rows.sort_by([(name, "ascending") for name in _POSITION])
        with connect(self._options.url, self._options.ledgers) as database:
            topic = database.topic(self._topic)
            messages = _with_headers(rows, _payloads(database, self._options))
            for first in range(0, messages.num_rows, ENTRY_MESSAGES):
                topic.append(
                    messages.slice(first, ENTRY_MESSAGES),
                    producer=f"spark-{self._write}-{_task()}" if positioned else None,
                    sequence=first if positioned else None,
                )
        return WriterCommitMessage()


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _payloads(database: Database, options: WriteOptions) -> Topic | None:
    return None if options.payloads is None else database.topic(options.payloads)


def _messages(rows: pa.RecordBatch, payloads: Topic | None) -> pa.Table:
    """Lay out the messages of all the batches, one after another, with what the topic knows about them."""
    numbers, known = unpack(rows)
    if payloads is not None:
        positions = pa.table({name: known[name] for name in _POSITION})
        if positions.column("ledger").null_count:
            raise SchemaError("payloads: these batches hold no positions; read the topic with ledger, entry and index")
        return payloads.messages_at(positions)
    known["source"] = rows.column("source").take(pa.array(numbers))
    return _filled(known, len(numbers))


def _filled(known: Mapping[str, pa.Array], count: int) -> pa.Table:
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    arrays = [
        known.get(field.name, empty if field.name == "payload" else pa.nulls(count, field.type))
        for field in POSITIONED_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=POSITIONED_SCHEMA)


def _written(rows: pa.RecordBatch, messages: pa.Table) -> Iterator[bytes]:
    # By way of messages, so that a batch has the same bytes whichever runtime wrote it: slices of columns keep traces
    # of what they were cut from.
    flat = iter(from_arrow(messages))
    facts = [rows.column(name).to_pylist() for name in ("source", "start", "end", "closed_at", "reason", "count")]
    for source, start, end, closed_at, reason, count in zip(*facts, strict=True):
        yield Batch(source, start, end, closed_at, reason, tuple(islice(flat, count))).to_bytes()


def _with_headers(rows: pa.Table, payloads: Topic | None) -> pa.Table:
    """Give the messages to append; a column ``reason`` and the position become headers."""
    if payloads is None:
        messages = rows.select([name for name in MESSAGE_SCHEMA.names if name in rows.column_names])
    else:
        messages = payloads.messages_at(rows.select(_POSITION)).select(MESSAGE_SCHEMA.names)
    if "reason" not in rows.column_names:
        return messages
    added: list[Sequence[str | None]] = [rows.column("reason").to_pylist()]
    if set(_POSITION) <= set(rows.column_names):
        places = [pc.cast(rows.column(name), pa.string()) for name in _POSITION]
        added.append(pc.call_function("binary_join_element_wise", [*places, ":"]).to_pylist())
    old = messages.column("headers").to_pylist() if "headers" in messages.column_names else [None] * rows.num_rows
    names = (REASON_HEADER, POSITION_HEADER)
    headers = [[*(given or ()), *zip(names, values, strict=False)] for given, *values in zip(old, *added, strict=True)]
    column = pa.array(headers, MESSAGE_SCHEMA.field("headers").type)
    if "headers" in messages.column_names:
        return messages.set_column(messages.column_names.index("headers"), "headers", column)
    return messages.append_column("headers", column)
