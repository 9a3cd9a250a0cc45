"""Puts batches into a message table. A batch's id is the message's, so writing one again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from waterclock.batching.batch import short_source
from waterclock.spark.options import plainly
from waterclock.spark.session.workers import freeze_imports
from waterclock.spark.streaming.batch_rows import encoded
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.spark.writing.writer import Writer

BATCHES_AT_ONCE = 500
"""Batches a writer puts into a message table in one transaction."""


class BatchWriter(Writer):
    """Writes the batches of a DataFrame, or of a stream's micro-batch, each as one message of its source's group."""

    def __init__(self, options: WriteOptions, table: str) -> None:
        self._options = options
        self._table = table

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's batches, some at a time."""
        options = self._options
        with plainly(), options.connect() as database, options.open_payloads(database) as payloads:
            table = database.table(self._table)
            for rows in iterator:
                for first in range(0, rows.num_rows, BATCHES_AT_ONCE):
                    some = rows.slice(first, BATCHES_AT_ONCE)
                    names, sources = (some.column(name).to_pylist() for name in ("id", "source"))
                    table.put_many(
                        {"id": name, "group": short_source(source), "payload": payload}
                        for name, source, payload in zip(names, sources, encoded(some, payloads), strict=True)
                    )
        freeze_imports()
        return WriterCommitMessage()
