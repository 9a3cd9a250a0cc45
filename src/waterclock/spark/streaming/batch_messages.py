"""Returns the messages of batches as rows or arrays for SQL, with their payloads from the topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from waterclock._support.quoting import quoted
from waterclock.columnar.packing import row_counts
from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError
from waterclock.spark.options import Opening, plainly
from waterclock.spark.runtime.partitions import few_connecting
from waterclock.spark.runtime.workers import freezing_imports
from waterclock.spark.streaming.batch_rows import Payloads, looks
from waterclock.spark.streaming.batching import first_place

_LEDGER, _PLACE = "waterclock ledger", "waterclock place"
_PACKED: dict[str, DataType] = {
    "source": StringType(),
    "streams": ArrayType(StringType()),
    "count": IntegerType(),
    "messages": BinaryType(),
}
_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "event_time": LongType(),
    "publish_time": LongType(),
    "receive_time": LongType(),
    "headers": MapType(StringType(), StringType()),
    "payload": BinaryType(),
    "ledger": LongType(),
    "entry": LongType(),
    "index": IntegerType(),
}
_WITHOUT_PAYLOADS = tuple(name for name in _TYPES if name not in ("publish_time", "headers", "payload"))


class _PayloadLocation(NamedTuple):
    """The location of the payloads."""

    opening: Opening
    topic: str


def messages_of(
    batches: DataFrame,
    payloads: str | None = None,
    *,
    url: str | None = None,
    ledgers: str | None = None,
    as_array: bool = False,
) -> DataFrame:
    """Return the messages of batches, a row for each message or an array for each batch, so that SQL can work on them.

    Parameters
    ----------
    batches
        The result of `event_time_batches`, `rate_aware_batches` or `batches_of`, batch or streaming, or some of its
        rows.
    payloads
        Name of the topic that the messages were read from: then they come with its columns at their positions.
    url, ledgers
        The database of that topic, as `waterclock.connect` takes them.
    as_array
        Return one row per batch.

    Returns
    -------
    DataFrame
        The columns of the batches, with ``stream``, ``event_time``, ``receive_time`` (BIGINT ns), ``ledger``, ``entry``
        and ``index`` of each message and, with ``payloads``, also ``publish_time``, ``headers`` and ``payload``. As
        rows, these columns stand for ``streams``, ``count`` and ``messages``; as an array, they are the fields of
        ``messages``. Messages of a batch are in order of event time and stream in the array; rows have no order.

    Raises
    ------
    InvalidArgumentError
        For columns that are not those of batches, for a column that has the name of one of a message, and if the
        topic's URL is missing.
    NotFoundError
        If there is no such topic.

    Notes
    -----
    Each payload is fetched once for each batch that holds it, so persist a DataFrame that is used twice. In a replay,
    the batches that begin in a ledger meet in one task, so that its file is read about once.
    """
    where = _where(payloads, url, ledgers)
    names = tuple(_TYPES) if where else _WITHOUT_PAYLOADS
    schema = _schema(batches, names, as_array=as_array)
    if where is not None and not batches.isStreaming:
        batches = by_position(batches)
    return batches.mapInArrow(freezing_imports(_messages, names=names, where=where, as_array=as_array), schema)


def by_position(batches: DataFrame) -> DataFrame:
    """Put the batches that begin in a ledger into one task, in order of position, so that its file is read once."""
    # Columns of their own, or the messages would be copied at every comparison.
    placed = batches.withColumns({_LEDGER: first_place(["ledger"]), _PLACE: first_place()})
    return few_connecting(placed, _LEDGER).sortWithinPartitions(_PLACE).drop(_LEDGER, _PLACE)


def _where(payloads: str | None, url: str | None, ledgers: str | None) -> _PayloadLocation | None:
    if payloads is None:
        if url is not None or ledgers is not None:
            raise InvalidArgumentError(
                "payloads is missing. With url or ledgers, pass payloads=, the name of the topic with the payloads"
            )
        return None
    if url is None:
        raise InvalidArgumentError(
            f"url is missing. With payloads={quoted(payloads)}, pass url=, the URL of the topic's database"
        )
    with connect(url, ledgers) as database:
        database.topic(payloads)
    return _PayloadLocation(Opening(url, ledgers), payloads)


def _schema(batches: DataFrame, names: Sequence[str], *, as_array: bool) -> StructType:
    types = {field.name: field.dataType for field in batches.schema}
    for name, wanted in _PACKED.items():
        if name not in types:
            raise InvalidArgumentError(f"batches must have a column {quoted(name)}, got columns {', '.join(types)}")
        if types[name].simpleString() != wanted.simpleString():
            raise InvalidArgumentError(
                f"batches: column {quoted(name)} must be {wanted.simpleString()}, got {types[name].simpleString()}"
            )
    fields = [StructField(name, _TYPES[name]) for name in names]
    if as_array:
        messages = StructField("messages", ArrayType(StructType(fields)))
        return StructType([messages if field.name == "messages" else field for field in batches.schema])
    kept = [field for field in batches.schema if field.name == "source" or field.name not in _PACKED]
    if twice := [field.name for field in kept if field.name in names]:
        raise InvalidArgumentError(
            f"batches: column {quoted(twice[0])} has a name that is reserved for messages. Rename the column"
        )
    return StructType([*kept, *fields])


def _messages(
    batches: Iterator[pa.RecordBatch], names: Sequence[str], where: _PayloadLocation | None, *, as_array: bool
) -> Iterator[pa.RecordBatch]:
    with plainly(), ExitStack() as stack:
        topic = None if where is None else stack.enter_context(where.opening.connect()).topic(where.topic)
        payloads = None if topic is None else Payloads(topic)
        for rows, messages in looks(batches, payloads):
            laid_out = messages.select(names)
            yield _arrays(rows, laid_out) if as_array else _rows(rows, laid_out)


def _rows(rows: pa.RecordBatch, messages: pa.RecordBatch) -> pa.RecordBatch:
    of_row = pa.array(np.repeat(np.arange(rows.num_rows), row_counts(rows)))
    kept = {
        name: rows.column(name).take(of_row) for name in rows.schema.names if name == "source" or name not in _PACKED
    }
    return pa.record_batch({**kept, **dict(zip(messages.schema.names, messages.columns, strict=True))})


def _arrays(rows: pa.RecordBatch, messages: pa.RecordBatch) -> pa.RecordBatch:
    offsets = np.concatenate([[0], np.cumsum(row_counts(rows))]).astype(np.int32)
    arrays = pa.ListArray.from_arrays(pa.array(offsets), messages.to_struct_array())
    columns = {name: rows.column(name) for name in rows.schema.names}
    return pa.record_batch({**columns, "messages": arrays})
