"""Puts batches into a message table. A batch's id is the message's, so writing one again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, short_source
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.spark.options import plainly
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.spark.streaming.batch_rows import encoded
from waterclock.spark.writing.write_options import WriteOptions
from waterclock.spark.writing.writer import Writer
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.peeking import payloads_of

BATCHES_AT_ONCE = 500
"""Batches a writer puts into a message table in one transaction."""


class BatchWriter(Writer):
    """Writes the batches of a DataFrame, or of a stream's micro-batch, each as one message of its source's group.

    Those of ``is_written`` are bytes already.
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
            for given, encoded_batches in written if self._is_written else encoded(iterator, payloads):
                # Ids begin with the source: neighbouring ones share pages of the index, which takes a third off a put
                # into 100,000 batches on SQLite. The sort is stable, so the batches of a source stay in order.
                order = pc.call_function("array_sort_indices", [given.column("source")])
                rows, messages = given.take(order), encoded_batches.take(order)
                for first in range(0, rows.num_rows, BATCHES_AT_ONCE):
                    some = rows.slice(first, BATCHES_AT_ONCE)
                    names, sources = (some.column(name).to_pylist() for name in ("id", "source"))
                    batches = messages.slice(first, BATCHES_AT_ONCE).to_pylist()
                    put = table.put_many(
                        {"id": name, "group": short_source(source), "payload": payload}
                        for name, source, payload in zip(names, sources, batches, strict=True)
                    )
                    _check_known(table, put.existing, dict(zip(names, batches, strict=True)))
        freeze_imports()
        return WriterCommitMessage()


def _check_known(table: MessageTable, known: Sequence[Any], batches: Mapping[str, bytes]) -> None:
    """Check that batches which the table has already are those that were to be written, perhaps cut otherwise.

    A replay, and a stream that begins again, may cut the first batches of a source otherwise; those that are there
    stay.
    """
    if not known:
        return
    for name, payload in payloads_of(table.context, known).items():
        if payload != batches[name] and not _share_a_message(payload, batches[name]):
            raise InvalidArgumentError(
                f"cannot write batch {quoted(name)} to message table {quoted(table.name)}: it holds a batch of"
                " that id with other messages, of another topic or of another source with that name. Use one"
                " table per topic"
            )


def _share_a_message(*batches: object) -> bool:
    """Whether a message is in both batches; one without a payload counts with any payload."""
    try:
        known, other = (
            {(m.stream, m.event_time): m.payload for m in Batch.from_bytes(cast("bytes", batch)).messages}
            for batch in batches
        )
    except (WaterclockError, TypeError):
        return False  # it is no batch
    return any(payload == known[key] or not payload or not known[key] for key, payload in other.items() if key in known)
