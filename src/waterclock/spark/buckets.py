"""Distributes sources to buckets. A bucket is a fixed partition of a stream's state, and holds many sources.

Spark converts every row and every state access of a Python operator to objects, and makes a round trip for each. So the
number of rows and accesses determines the cost. The CRC-32 of a source's name determines its bucket. All messages that
a task has read for a bucket are passed as one binary cell, and the outcomes come back as an Arrow record batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from waterclock._support.quoting import quoted
from waterclock.checksum import checksum
from waterclock.columnar.many_sources import ManySources, from_packed
from waterclock.columnar.packing import ROWS, clock_of, columns_of, encoded, together
from waterclock.errors import InvalidArgumentError

BUCKETS = 64
"""Default number for a query, and so the maximum number of tasks that judge at the same time."""

MOST_BUCKETS = 960
"""Each costs some milliseconds a micro-batch; and `bucket_keys` needs a number with many divisors."""

BUCKETED_SCHEMA = "bucket INT, rows BINARY, clock BIGINT"
"""The columns in which messages reach the operator; ``rows`` is a cell of `ManySources`, and ``clock`` as in
`waterclock.columnar.packing`."""

BATCH_LENGTH = "batch_length"
"""The column with the batch length of a micro-batch, ns."""

_BUCKETED = ["bucket", "rows", "clock"]

# Spark passes 10,000 rows of any size to Python at once, and an Arrow column holds at most 2 GiB.
_LARGEST_CELL = 2**17
_SEED = 42
_METADATA = "waterclock.buckets"
_ID_METADATA = "waterclock.id_of"


def checked_buckets(buckets: int) -> int:
    """Check a number of buckets.

    Raises `InvalidArgumentError` if it is not an integer from 1 to `MOST_BUCKETS`.
    """
    if type(buckets) is not int or not 1 <= buckets <= MOST_BUCKETS:
        raise InvalidArgumentError(f"buckets must be an integer from 1 to {MOST_BUCKETS}, got {quoted(buckets)}")
    return buckets


def bucketed_schema(buckets: int, id_of: str | None = None, *, adapts: bool = False) -> StructType:
    """Return `BUCKETED_SCHEMA` as Spark's types; metadata hold the number of buckets, and the header of the ids.

    If the batch length adapts, each row also has the `BATCH_LENGTH` of its micro-batch.
    """
    noted: dict[str, Any] = {_METADATA: buckets} | ({} if id_of is None else {_ID_METADATA: id_of})
    return StructType(
        [
            StructField("bucket", IntegerType(), metadata=noted),
            StructField("rows", BinaryType()),
            StructField("clock", LongType()),
            *[StructField(BATCH_LENGTH, LongType())] * adapts,
        ]
    )


def numbered_schema(id_of: str) -> StructType:
    """Return `waterclock.columnar.packing.CLOCKED_SCHEMA` as Spark's types; metadata hold the header of the ids."""
    return StructType(
        [
            StructField("source", StringType(), metadata={_ID_METADATA: id_of}),
            StructField("streams", ArrayType(StringType())),
            StructField("count", IntegerType()),
            StructField("messages", BinaryType()),
            StructField("clock", LongType()),
        ]
    )


def id_header_of(schema: StructType) -> str | None:
    """Return the header of the ids of packed messages; None if they have none."""
    return schema.fields[0].metadata.get(_ID_METADATA)


def buckets_of(schema: StructType) -> int | None:
    """Return into how many buckets the read has gathered a DataFrame's rows; None if it has not."""
    if schema.names[: len(_BUCKETED)] != _BUCKETED:
        return None
    return schema["bucket"].metadata.get(_METADATA)


def pack_to_buckets(batches: Iterable[pa.RecordBatch], record: np.dtype[Any], buckets: int) -> Iterator[pa.RecordBatch]:
    """Gather messages by the bucket of their source.

    Parameters
    ----------
    batches
        Messages, as `waterclock.columnar.packing.pack` takes them.
    record
        `waterclock.columnar.records.PLAIN`, `POSITIONED` or `NUMBERED`.
    buckets
        How many there are.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `BUCKETED_SCHEMA`, made of about a million messages at once; within a cell, messages keep their order.

    Raises
    ------
    InvalidArgumentError
        For a null in any of the columns.
    """
    for messages in together(batches, len):
        columns = columns_of(messages, record)
        source_names, sources = encoded(columns["source"])
        stream_names, streams = encoded(columns["stream"])
        records = np.empty(len(sources), record)
        for name in record.names or ():
            records[name] = streams if name == "stream" else columns[name].to_numpy()
        many = ManySources(source_names, stream_names, records, sources, streams)
        yield _gathered(many, buckets, clock_of(records))


def to_buckets(batches: Iterable[pa.RecordBatch], record: np.dtype[Any], buckets: int) -> Iterator[pa.RecordBatch]:
    """Gather packed rows by the bucket of their source.

    Parameters
    ----------
    batches
        Rows of `waterclock.columnar.packing.CLOCKED_SCHEMA`.
    record, buckets
        As of `pack_to_buckets`.

    Yields
    ------
    pyarrow.RecordBatch
        As of `pack_to_buckets`.
    """
    for rows in together(filter(len, batches), lambda batch: int(batch.column("count").to_numpy().sum())):
        clock = int(rows.column("clock").to_numpy().max())
        yield _gathered(from_packed(rows.select(ROWS.names).cast(ROWS), record), buckets, clock)


@cache
def bucket_keys(buckets: int) -> npt.NDArray[np.int32]:
    """Return the numbers by which Spark knows the buckets.

    Spark assigns a key to the partition whose number is its hash modulo their count. By chance some partitions would
    get three times as many buckets as others. So each bucket takes the smallest key whose hash is its own number modulo
    `MOST_BUCKETS`. If the number of partitions divides that, all get equally many buckets; otherwise about equally
    many.
    """
    keys = np.arange(64 * MOST_BUCKETS, dtype=np.uint32)
    hashes, first = np.unique(_spark_hash(keys) % MOST_BUCKETS, return_index=True)
    return keys[first[np.searchsorted(hashes, np.arange(buckets))]].astype(np.int32)


def _spark_hash(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Compute Spark's function ``hash`` of INTs: Murmur3 of one block of four bytes."""
    mixed = _rotated(keys * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return (mixed ^ (mixed >> np.uint32(16))).view(np.int32)


def _rotated(values: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(by)) | (values >> np.uint32(32 - by))


def _gathered(many: ManySources, buckets: int, clock: int) -> pa.RecordBatch:
    names = many.source_names.to_pylist()
    of_name = np.fromiter((checksum(name.encode()) % buckets for name in names), np.uint16, len(names))
    # The names of a bucket are adjacent, so that those of a cell are found without a full scan.
    by_bucket = np.argsort(of_name, kind="stable")
    place = np.empty(len(names), np.int32)
    place[by_bucket] = np.arange(len(names), dtype=np.int32)
    source_names = many.source_names.take(pa.array(by_bucket))
    first_name = np.searchsorted(of_name[by_bucket], np.arange(buckets + 1))
    of_message = of_name[many.sources]
    ordered = many.take(np.argsort(of_message, kind="stable"))
    first_message = np.concatenate([[0], np.cumsum(np.bincount(of_message, minlength=buckets))])
    most = max(1, _LARGEST_CELL // many.messages.itemsize)
    of_bucket: list[int] = []
    cells: list[bytes] = []
    for bucket in range(buckets):
        names_here = source_names[first_name[bucket] : first_name[bucket + 1]]
        for first in range(first_message[bucket], first_message[bucket + 1], most):
            part = slice(first, min(first + most, first_message[bucket + 1]))
            sources = place[ordered.sources[part]] - first_name[bucket]
            met = np.flatnonzero(np.bincount(sources, minlength=len(names_here)))
            piece = ordered._replace(
                source_names=names_here,
                messages=ordered.messages[part],
                sources=sources,
                streams=ordered.streams[part],
            )
            cells.append(piece.of_sources(met).to_cell())
            of_bucket.append(bucket)
    columns: dict[str, Any] = {
        "bucket": bucket_keys(buckets)[of_bucket],
        "rows": pa.array(cells, pa.binary()),
        "clock": np.full(len(cells), clock),
    }
    return pa.record_batch(columns)
