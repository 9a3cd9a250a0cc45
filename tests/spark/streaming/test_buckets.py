"""Buckets, without a query: each source in one of them, each cell small enough, and keys that spread evenly."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.spark.results import METADATA

from waterclock.arrow import to_arrow
from waterclock.columnar.many_sources import many_from_cell
from waterclock.columnar.packing import pack
from waterclock.columnar.records import PLAIN
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.message import Message
from waterclock.spark import buckets
from waterclock.spark.buckets import MOST_BUCKETS, bucket_keys, checked_buckets, pack_to_buckets, to_buckets


def sent(sources: int, each: int) -> list[Message]:
    return [
        Message(f"source-{number}", "a", at, receive_time=at + 5_000) for at in range(each) for number in range(sources)
    ]


def gathered(messages: list[Message], count: int) -> list[tuple[int, list[str], list[int]]]:
    """Give of each cell its bucket, its sources and the event times of its messages."""
    found: list[tuple[int, list[str], list[int]]] = []
    columns = to_arrow(messages, positions=True).select(METADATA)
    for batch in pack_to_buckets([columns], PLAIN, count):
        for row in batch.to_pylist():
            assert row["clock"] == (messages[-1].receive_time or 0) // 1_000
            many = many_from_cell(row["rows"], PLAIN)
            assert sorted(set(many.sources.tolist())) == list(range(len(many.source_names)))
            found.append((row["bucket"], many.source_names.to_pylist(), many.messages["event_time"].tolist()))
    assert by_source(to_buckets(pack([columns], PLAIN), PLAIN, count)) == by_source(
        pack_to_buckets([columns], PLAIN, count)
    )
    return found


def by_source(cells: Iterable[pa.RecordBatch]) -> dict[tuple[int, str, str], list[int]]:
    found: dict[tuple[int, str, str], list[int]] = {}
    for row in (row for batch in cells for row in batch.to_pylist()):
        many = many_from_cell(row["rows"], PLAIN)
        names = (many.source_names.to_pylist(), many.stream_names.to_pylist())
        for source, stream, at in zip(many.sources, many.streams, many.messages["event_time"].tolist(), strict=True):
            found.setdefault((row["bucket"], names[0][source], names[1][stream]), []).append(at)
    return found


def test_every_message_is_in_the_bucket_of_its_source_and_no_cell_is_large():
    messages = sent(40, 50)
    with patch.object(buckets, "_LARGEST_CELL", 3_000):
        found = gathered(messages, 4)
    of_source = {source: bucket for bucket, sources, _ in found for source in sources}
    assert len(of_source) == 40
    assert all(of_source[source] == bucket for bucket, sources, _ in found for source in sources)
    assert {bucket for bucket, _, _ in found} == set(bucket_keys(4).tolist())
    assert sorted(t for *_, times in found for t in times) == sorted(m.event_time for m in messages)
    assert max(len(times) for *_, times in found) * PLAIN.itemsize <= 3_000


def test_a_source_stays_in_its_bucket():
    """What a checkpoint relies on: the numbers below were written by an earlier run."""
    found = {sources[0]: bucket for bucket, sources, _ in gathered(sent(3, 1), MOST_BUCKETS)}
    assert found == {"source-0": 55, "source-1": 1032, "source-2": 111}


def test_a_cell_holds_at_least_one_message():
    with patch.object(buckets, "_LARGEST_CELL", 10):
        found = gathered(sent(3, 2), 1)
    assert [len(times) for *_, times in found] == [1] * 6


@pytest.mark.parametrize("partitions", [2, 3, 8, 12, 16, 64])
def test_buckets_spread_evenly_over_the_partitions_that_spark_puts_them_into(spark: SparkSession, partitions: int):
    keys = bucket_keys(64)
    assert len(set(keys.tolist())) == 64
    if partitions == 64:
        hashed = spark.createDataFrame([(int(key),) for key in keys], "bucket INT").select(F.hash("bucket")).collect()
        assert [row[0] for row in hashed] == buckets._spark_hash(keys.view(np.uint32)).tolist()
    filled = np.bincount(buckets._spark_hash(keys.view(np.uint32)) % partitions, minlength=partitions)
    assert filled.max() - filled.min() <= 1


@pytest.mark.parametrize("count", [0, -1, MOST_BUCKETS + 1, 2.0, True, "8", None])
def test_an_invalid_number_of_buckets_is_refused(count: object):
    with pytest.raises(InvalidArgumentError, match=f"buckets must be an integer from 1 to {MOST_BUCKETS}"):
        checked_buckets(count)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cell", [b"", b"something", bytes(64)])
def test_a_strange_cell_is_refused(cell: bytes):
    with pytest.raises(DamagedError):
        many_from_cell(cell, PLAIN)
