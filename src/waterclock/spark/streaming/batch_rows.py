"""Rows of batches, as `waterclock.spark.batches_of` gives them, and the messages that belong to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.arrow import POSITION_FIELDS, POSITIONED_SCHEMA, cut_apart
from waterclock.batching.batch import encode_batch
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.quoting import quoted
from waterclock.spark.packing import unpack
from waterclock.time_columns import as_nanoseconds
from waterclock.topics.topic import Topic

POSITION = tuple(field.name for field in POSITION_FIELDS)
"""The columns of a position."""

BATCH_COLUMNS = ("id", "source", "start", "end", "closed_at", "reason", "streams", "count", "messages")
"""The columns of a batch."""

_NAMES = ("source", "stream")
_NS_PER_US = 1_000
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
    known["source"] = rows.column("source").take(pa.array(numbers))
    if payloads is None:
        return _filled(known, len(numbers))
    if known["ledger"].null_count:
        raise SchemaError("payloads: these batches hold no positions; read the topic with ledger, entry and index")
    return found_at(payloads, pa.table(known))


def found_at(topic: Topic, rows: pa.Table) -> pa.Table:
    """Give what a topic has at the positions of some rows, where it is what the rows were made of.

    Parameters
    ----------
    rows
        With the columns of a position, source, stream and event_time.

    Raises
    ------
    InvalidArgumentError
        Where another message stands at a position: these are rows of another topic.
    """
    found = topic.messages_at(rows.select(POSITION))
    differs = np.abs(found.column("event_time").to_numpy() - _times(rows)) >= _NS_PER_US  # they may have been TIMESTAMP
    for name in _NAMES:
        other = pc.call_function("not_equal", [found.column(name), rows.column(name).cast(pa.string())])
        differs |= pc.call_function("coalesce", [other, pa.scalar(True)]).to_numpy()  # of a null
    if differs.any():
        number = int(np.argmax(differs))
        place = ":".join(str(rows.column(name)[number]) for name in POSITION)
        there, here = (
            " and stream ".join(quoted(table.column(name)[number].as_py()) for name in _NAMES)
            for table in (found, rows)
        )
        raise InvalidArgumentError(
            f"payloads: at {place} topic {quoted(topic.name)} has another message, of source {there}, than these rows,"
            f" of source {here}: give the topic that they were read from; rows that were changed since have no payloads"
        )
    return found


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


def _times(rows: pa.Table) -> npt.NDArray[np.int64]:
    return as_nanoseconds(rows.column("event_time"), "event_time").to_numpy()


def _filled(known: Mapping[str, pa.Array], count: int) -> pa.Table:
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    arrays = [
        known.get(field.name, empty if field.name == "payload" else pa.nulls(count, field.type))
        for field in POSITIONED_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=POSITIONED_SCHEMA)
