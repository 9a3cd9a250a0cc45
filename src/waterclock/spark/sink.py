"""Writes to Waterclock on Spark: batches into a message table, messages into a topic, each exactly once."""

from __future__ import annotations

from pyspark.sql.types import StructType

from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.quoting import quoted
from waterclock.spark.batch_rows import BATCH_COLUMNS, POSITION
from waterclock.spark.batch_writer import BatchWriter
from waterclock.spark.message_writer import MessageWriter
from waterclock.spark.write_options import WriteOptions

_MESSAGE_COLUMNS = ("source", "stream", "event_time")


def make_writer(
    options: WriteOptions, schema: StructType, *, overwrite: bool, streaming: bool = False
) -> BatchWriter | MessageWriter:
    """Choose the writer for a checked write of rows with this schema."""
    if overwrite:
        remedy = 'output mode "append"' if streaming else 'mode "append"'
        raise InvalidArgumentError(f"overwriting would delete what is there; use {remedy}")
    needs = _MESSAGE_COLUMNS if options.table is None else BATCH_COLUMNS
    if missing := [name for name in needs if name not in schema.fieldNames()]:
        raise SchemaError(f"the rows to write lack the column {quoted(missing[0])}; they have {schema.fieldNames()}")
    if options.table is not None:
        return BatchWriter(options, options.table)
    if options.payloads is not None and not set(POSITION) <= set(schema.fieldNames()):
        raise SchemaError(f"payloads: the rows have no position ({', '.join(POSITION)}) by which to find them")
    return MessageWriter(options, str(options.topic), streaming=streaming)
