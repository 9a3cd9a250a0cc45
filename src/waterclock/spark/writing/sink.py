"""Checks the rows and options of a write, and chooses the writer for batches or the writer for messages."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.spark.reading.column_types import time_problem
from waterclock.spark.streaming.batch_rows import BATCH_COLUMNS, POSITION
from waterclock.spark.writing.batch_writer import BatchWriter
from waterclock.spark.writing.message_writer import MessageWriter
from waterclock.spark.writing.write_options import WriteOptions

_MESSAGE_COLUMNS = ("source", "stream", "event_time")
_TIMES = ("event_time", "publish_time", "receive_time")
_BATCH_TYPES: dict[str, DataType] = {
    **dict.fromkeys(("id", "source", "reason"), StringType()),
    **dict.fromkeys(("start", "end", "closed_at"), LongType()),
    "streams": ArrayType(StringType()),
    "count": IntegerType(),
    "messages": BinaryType(),
}
_WRITTEN_TYPES: dict[str, DataType] = {"id": StringType(), "source": StringType(), "payload": BinaryType()}
"""The columns of batches that are already bytes, as in a pipeline's Parquet output."""


def make_writer(
    options: WriteOptions, schema: StructType, *, overwrite: bool, streaming: bool = False
) -> BatchWriter | MessageWriter:
    """Choose the writer for a checked write of rows with this schema."""
    if overwrite:
        remedy = 'output mode "append"' if streaming else 'mode "append"'
        raise InvalidArgumentError(f"cannot overwrite: that would delete existing messages. Use {remedy}")
    is_written = options.table is not None and "payload" in schema.fieldNames()
    needs = _MESSAGE_COLUMNS if options.table is None else tuple(_WRITTEN_TYPES) if is_written else BATCH_COLUMNS
    if missing := [name for name in needs if name not in schema.fieldNames()]:
        columns = ", ".join(map(quoted, schema.fieldNames()))
        raise SchemaError(f"the rows must have a column {quoted(missing[0])}, got columns {columns}")
    types = {field.name: field.dataType for field in schema}
    if options.table is not None:
        _refuse_other_batches(types, _WRITTEN_TYPES if is_written else _BATCH_TYPES)
        return BatchWriter(options, options.table, is_written=is_written)
    if options.payloads is not None and not set(POSITION) <= set(schema.fieldNames()):
        raise SchemaError(
            f"the rows must have the position ({', '.join(POSITION)}) of each message, because payloads are looked up"
            " by position"
        )
    for name in filter(types.__contains__, _TIMES):
        if problem := time_problem(types[name]):
            raise SchemaError(f"column {name!r} {problem}")
    return MessageWriter(options, str(options.topic), streaming=streaming)


def _refuse_other_batches(types: Mapping[str, DataType], needed: Mapping[str, DataType]) -> None:
    for name, needed_type in needed.items():
        wanted, found = needed_type.simpleString(), types[name].simpleString()
        if found != wanted:
            raise SchemaError(
                f"column {name!r} must be {wanted}, got {found}. Write the rows as event_time_batches or"
                " rate_aware_batches returned them"
            )
