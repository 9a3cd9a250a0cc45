"""Rows of batches, as `waterclock.spark.batches_of` gives them, and the messages that belong to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from waterclock.arrow import POSITION_FIELDS, POSITIONED_SCHEMA, cut_apart
from waterclock.batching.batch import encode_batch
from waterclock.errors import SchemaError
from waterclock.spark.packing import unpack
from waterclock.topics.topic import Topic

POSITION = tuple(field.name for field in POSITION_FIELDS)
"""The columns of a position."""

BATCH_COLUMNS = ("id", "source", "start", "end", "closed_at", "reason", "streams", "count", "messages")
"""The columns of a batch."""

_FACTS = ("source", "start", "end", "closed_at", "reason")


def messages_in(rows: pa.RecordBatch, payloads: Topic | None) -> pa.Table:
    """Lay out the messages of all the batches, one after another, with what the topic knows about them.

    Parameters
    ----------
    rows
        Batches.
    payloads
        The topic that the messages were read from; None: they get no payload.

    Returns
    -------
    pyarrow.Table
        Columns of `waterclock.arrow.POSITIONED_SCHEMA`.
    """
    numbers, known = unpack(rows)
    if payloads is not None:
        positions = pa.table({name: known[name] for name in POSITION})
        if positions.column("ledger").null_count:
            raise SchemaError("payloads: these batches hold no positions; read the topic with ledger, entry and index")
        return payloads.messages_at(positions)
    known["source"] = rows.column("source").take(pa.array(numbers))
    return _filled(known, len(numbers))


def encoded(rows: pa.RecordBatch, payloads: Topic | None) -> Iterator[bytes]:
    """Write each batch as `waterclock.Batch.to_bytes` does: the same bytes, whichever runtime made the batch."""
    messages = messages_in(rows, payloads).combine_chunks().to_batches()
    if not messages:
        return
    if len(messages) > 1:
        raise SchemaError(f"{rows.num_rows} batches hold more than 2 GB of payloads; write fewer at a time")
    counts = rows.column("count").to_pylist()
    facts = zip(*(rows.column(name).to_pylist() for name in _FACTS), strict=True)
    for columns, fact in zip(cut_apart(messages[0], counts), facts, strict=True):
        yield encode_batch(columns, *fact)


def _filled(known: Mapping[str, pa.Array], count: int) -> pa.Table:
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    arrays = [
        known.get(field.name, empty if field.name == "payload" else pa.nulls(count, field.type))
        for field in POSITIONED_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=POSITIONED_SCHEMA)
