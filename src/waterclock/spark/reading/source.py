"""Reads a topic on Spark: ``spark.read.format("waterclock")``. Sealed ledgers come from Parquet, the rest as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from waterclock.errors import NotFoundError
from waterclock.message import Position
from waterclock.spark.buckets import pack_to_buckets
from waterclock.spark.options import plainly
from waterclock.spark.packing import pack
from waterclock.spark.reading.columns import laid_out, stored_columns
from waterclock.spark.reading.pushdown import Test, exact_test, passing, positions_by, wanted_by
from waterclock.spark.reading.topic_read_options import TopicReadOptions, refuse_expired
from waterclock.spark.records import POSITIONED
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.topics.catalogue.damage_policy import Damage
from waterclock.topics.reading.finding import find_first, find_start
from waterclock.topics.reading.pruning import ALL
from waterclock.topics.reading.slicing import Slice, read_slice
from waterclock.topics.topic import Topic

SLICE_MESSAGES = 500_000
"""Messages a task reads, at most, where a row group is no larger: some 20 MB of metadata."""


class SlicePartition(InputPartition):
    """What one task reads: a slice, or nothing."""

    def __init__(self, value: Slice | None) -> None:
        super().__init__(value)


class TopicReader(DataSourceReader):
    """Plans the slices of a topic on the driver and reads each in a task."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self._tests: list[Test] = []
        self._start: Position | None = None
        self._stop: Position | None = None
        self._wanted = ALL

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take the filters that Arrow can compare, derive what need not be read, and return the others."""
        self._wanted = wanted_by(filters)
        self._start, self._stop = positions_by(filters)
        for given in filters:
            test = exact_test(given)
            if test is None:
                yield given
            else:
                self._tests.append(test)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the range into slices, as one snapshot of the topic shows it."""
        with plainly(), self._options.connect() as database:
            topic = database.topic(self._options.topic)
            start, stop = self._range(topic)
            damage = self._options.on_damage
            slices = topic.plan(start, stop, max_messages=SLICE_MESSAGES, wanted=self._wanted, on_damage=damage)
            refuse_expired(topic, self._options.start)
        freeze_imports()
        return [SlicePartition(part) for part in slices] or [SlicePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice as record batches."""
        with plainly():
            yield from read_part(partition, self._options, self._tests)
        freeze_imports()

    def _range(self, topic: Topic) -> tuple[Position | None, Position | None]:
        options = self._options
        by, damage = options.by, options.on_damage
        start, stop = None if options.start == "latest" else options.start, options.stop
        if options.since is not None:
            since = topic.storage.time(options.since, "startingTimestamp")
            start = find_start(topic.storage, by, since, damage).position
        if options.until is not None:
            until = topic.storage.time(options.until, "endingTimestamp")
            stop = find_first(topic.storage, by, until, on_damage=damage).position
        # Both limits hold: the options', and the filters'.
        starts = [position for position in (start, self._start) if position is not None]
        stops = [position for position in (stop, self._stop) if position is not None]
        return max(starts, default=None), min(stops, default=None)


def read_part(
    partition: InputPartition, options: TopicReadOptions, tests: Iterable[Test] = ()
) -> Iterator[pa.RecordBatch]:
    """Read of one slice what passes the tests: in buckets, packed or in the columns asked for.

    Raises
    ------
    NotFoundError
        If it was deleted since it was cut.
    DamagedError
        If it is not what was written, or lacks entries, and the option ``onDamage`` is not ``skip``.
    """
    part = cast("Slice | None", partition.value)
    if part is None:
        return
    messages = (passing(batch, tests) for batch in _read_whole(part, options))
    if options.buckets is not None:
        yield from pack_to_buckets(messages, POSITIONED, options.buckets)
    else:
        yield from pack(messages, POSITIONED) if options.packed else messages


def _read_whole(part: Slice, options: TopicReadOptions) -> Iterator[pa.RecordBatch]:
    count = 0
    damage = Damage(part.topic, options.on_damage)
    for batch in read_slice(part, stored_columns(options.columns), encoded=options.packed, damage=damage):
        count += batch.num_rows
        yield laid_out(batch, options.columns)
    # When a ledger is deleted, its rows leave the database at once. A reader that goes on finds the next ledger.
    if part.path is None and count + damage.skipped < part.messages:
        raise NotFoundError(
            f"ledger {part.start.ledger} of topic {part.topic!r} was deleted while it was read:"
            f" {part.messages - count - damage.skipped} messages from {part.start} on are gone. Read again,"
            " from the first remaining message"
        )
