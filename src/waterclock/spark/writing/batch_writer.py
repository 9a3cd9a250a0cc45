"""Puts the batches of a DataFrame or stream into a message table.

The id of a batch is the id of its message, so a repeated write changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from waterclock.spark.options import plainly
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.spark.streaming.batch_rows import encoded
from waterclock.spark.writing.put_batches import put_batches
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.spark.writing.writer import Writer


class BatchWriter(Writer):
    """Writes the batches of a DataFrame, or of a stream's micro-batch, each as one message of its source's group.

    Batches of ``is_written`` are already bytes.
    """

    def __init__(self, options: WriteOptions, table: str, *, is_written: bool = False) -> None:
        self._options = options
        self._table = table
        self._is_written = is_written

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's batches, some at a time."""
        options = self._options
        with plainly(), options.connect() as database, options.open_payloads(database) as payloads:
            table = database.table(self._table)
            written = ((rows, rows.column("payload")) for rows in iterator)
            for rows, messages in written if self._is_written else encoded(iterator, payloads):
                put_batches(table, rows, messages)
        freeze_imports()
        return WriterCommitMessage()
