"""Buckets: the fixed parts in which a stream keeps its state, each of them many sources.

Spark turns every row and every access to state of a Python operator into objects and a round trip, so what counts is
how many there are. A source belongs to the bucket that its name's CRC-32 says, and all that a task has read of a
bucket's sources crosses as one binary cell: packed rows as a batch of Arrow's columns. So do the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.checksum import checksum
from waterclock.errors import InvalidArgumentError
from waterclock.quoting import quoted
from waterclock.spark.packing import encoded
from waterclock.spark.streaming.event_time_rows import begins
from waterclock.spark.streaming.outcome_rows import OUTCOMES, ROWS
from waterclock.spark.streaming.stream_state import from_cell, to_cell

BUCKETS = 64
"""So many a query, where nothing else is asked for: as many tasks may judge at the same time."""

MOST_BUCKETS = 960
"""Each costs some milliseconds a micro-batch; and `bucket_keys` needs a number with many divisors."""

BUCKETED_SCHEMA = "bucket INT, rows BINARY, clock BIGINT"
"""The columns of packed rows on their way to the operator; ``clock`` as in `waterclock.spark.packing`."""

CELL_SCHEMA = "bucket INT, open_sources BIGINT, outcomes BINARY"
"""The columns of outcomes on their way out of it; one row a bucket says how many sources have something open."""

_GATHERED_AT_ONCE = 2**20
# Spark hands 10,000 rows of any size to Python at once, and Arrow takes 2 GiB of bytes in a column.
_LARGEST_CELL = 2**17
_SEED = 42


def checked_buckets(buckets: int) -> int:
    """Check a number of buckets.

    Raises
    ------
    InvalidArgumentError
        For what is no whole number from 1 to `MOST_BUCKETS`.
    """
    if type(buckets) is not int or not 1 <= buckets <= MOST_BUCKETS:
        raise InvalidArgumentError(f"buckets: {quoted(buckets)}; give a whole number from 1 to {MOST_BUCKETS}")
    return buckets


def to_buckets(batches: Iterable[pa.RecordBatch], buckets: int) -> Iterator[pa.RecordBatch]:
    """Gather packed rows by the bucket of their source.

    Parameters
    ----------
    batches
        Rows of `waterclock.spark.packing.CLOCKED_SCHEMA`.
    buckets
        How many there are.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `BUCKETED_SCHEMA`, made of about a million messages at once; within a cell, rows keep their order.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in filter(len, batches):
        held.append(batch)
        count += int(batch.column("count").to_numpy().sum())
        if count >= _GATHERED_AT_ONCE:
            yield _gathered(pa.Table.from_batches(held), buckets)
            held, count = [], 0
    if held:
        yield _gathered(pa.Table.from_batches(held), buckets)


def outcome_cells(outcomes: pa.RecordBatch) -> Iterator[bytes]:
    """Cut outcomes into the values of `CELL_SCHEMA`, of rows that are together not much larger than 100 KB."""
    for part in _cut(outcomes, np.zeros(len(outcomes), np.int32)):
        yield to_cell(part)


def expand(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of `CELL_SCHEMA` into rows of `waterclock.spark.streaming.outcome_rows.OUTCOMES`."""
    for batch in rows:
        for cell in batch.column("outcomes").drop_null():
            yield from_cell(cell.as_buffer(), OUTCOMES)


@cache
def bucket_keys(buckets: int) -> npt.NDArray[np.int32]:
    """Give the numbers by which Spark knows the buckets.

    Spark puts a key into the partition that its hash gives modulo their number. By chance some partitions would get
    three times as many buckets as others, so each bucket takes the least key whose hash is its own number modulo
    `MOST_BUCKETS`: any number of partitions that divides it, and about any other, gets equally many.
    """
    keys = np.arange(64 * MOST_BUCKETS, dtype=np.uint32)
    hashes, first = np.unique(_spark_hash(keys) % MOST_BUCKETS, return_index=True)
    return keys[first[np.searchsorted(hashes, np.arange(buckets))]].astype(np.int32)


def _spark_hash(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Give what Spark's function ``hash`` gives for INTs: Murmur3 of one block of four bytes."""
    mixed = _rotated(keys * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return (mixed ^ (mixed >> np.uint32(16))).view(np.int32)


def _rotated(values: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(by)) | (values >> np.uint32(32 - by))


def _gathered(rows: pa.Table, buckets: int) -> pa.RecordBatch:
    names, sources = encoded(rows.column("source"))
    of_name = np.fromiter((checksum(name.encode()) % buckets for name in names.to_pylist()), np.int32, len(names))
    order = np.argsort(of_name[sources].astype(np.uint16), kind="stable")
    taken = rows.select(ROWS.names).cast(ROWS).take(pa.array(order)).combine_chunks().to_batches()[0]
    of_row = of_name[sources][order]
    parts = list(_cut(taken, of_row))
    firsts = np.cumsum([0, *map(len, parts)])[:-1]
    clock = int(rows.column("clock").to_numpy().max())
    columns: dict[str, Any] = {
        "bucket": bucket_keys(buckets)[of_row[firsts]],
        "rows": pa.array([to_cell(part) for part in parts], pa.binary()),
        "clock": np.full(len(parts), clock),
    }
    return pa.record_batch(columns)


def _cut(rows: pa.RecordBatch, kinds: npt.NDArray[np.int32]) -> Iterator[pa.RecordBatch]:
    """Cut rows into such of one kind that hold no more bytes than fit into a cell, or one row."""
    if not len(rows):
        return
    sizes = np.diff(
        np.frombuffer(rows.column("messages").buffers()[1], np.int32)[rows.column("messages").offset :][: len(rows) + 1]
    )
    pieces = (np.cumsum(sizes.astype(np.int64)) - sizes) // _LARGEST_CELL
    cuts = np.flatnonzero(begins(kinds, pieces)).tolist()
    for first, stop in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        yield rows.slice(first, stop - first)
