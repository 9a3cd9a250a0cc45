"""Reads a topic on Spark with ``spark.read.format("waterclock")``. Each task reads one slice of the topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from waterclock.columnar.message_ids import with_numbers
from waterclock.columnar.packing import pack
from waterclock.columnar.records import NUMBERED, POSITIONED
from waterclock.errors import NotFoundError
from waterclock.message import Position
from waterclock.spark.buckets import pack_to_buckets
from waterclock.spark.options import plainly
from waterclock.spark.reading.columns import laid_out, stored_columns
from waterclock.spark.reading.pushdown import Test, exact_test, passing, positions_by, wanted_by
from waterclock.spark.reading.topic_read_options import TopicReadOptions, refuse_expired
from waterclock.spark.runtime.partitions import MOST_CONNECTING
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.topics.catalogue.damage_policy import Damage
from waterclock.topics.finding.finding import find_first, find_start
from waterclock.topics.reading.planning import plan_runs
from waterclock.topics.reading.pruning import ALL
from waterclock.topics.reading.slicing import Slice, SliceRun, read_slice
from waterclock.topics.topic import Topic

FIRST = Position(0, 0, 0)
"""The beginning of a topic."""

SLICE_MESSAGES = 500_000
"""Maximum messages per task, unless a row group is larger: some 20 MB of metadata."""


class SlicePartition(InputPartition):
    """The work of one task: slices, a run of them, or nothing; and the batch length of a stream, ns, if that adapts.

    It contains enough to read sealed ones without the database.
    """

    def __init__(self, value: tuple[Slice, ...] | SliceRun, batch_length: int | None = None) -> None:
        super().__init__(value)
        self.batch_length = batch_length


def partitions_of(planned: Sequence[Slice | SliceRun], batch_length: int | None = None) -> list[InputPartition]:
    """Share slices out among tasks, one each.

    Sealed slices are read from files alone. The others are rows of the database, so at most `MOST_CONNECTING` tasks
    read them.
    """
    unsealed = [part for part in planned if isinstance(part, Slice) and part.path is None]
    before = accumulate((part.messages for part in unsealed), initial=0)
    total = max(sum(part.messages for part in unsealed), 1)
    few = len(unsealed) <= MOST_CONNECTING
    tasks: defaultdict[int, list[Slice]] = defaultdict(list)
    for number, (count, part) in enumerate(zip(before, unsealed, strict=False)):
        tasks[number if few else min(count * MOST_CONNECTING // total, MOST_CONNECTING - 1)].append(part)
    sealed = [part if isinstance(part, SliceRun) else (part,) for part in planned]
    sealed = [part for part in sealed if isinstance(part, SliceRun) or part[0].path is not None]
    return [SlicePartition(part, batch_length) for part in (*sealed, *map(tuple, tasks.values()))]


class TopicReader(DataSourceReader):
    """Plans the slices of a topic on the driver and reads each in a task."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self._tests: list[Test] = []
        self._start: Position | None = None
        self._stop: Position | None = None
        self._wanted = ALL

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take the filters that Arrow can compare, skip parts by them, and return the others."""
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
            damage = Damage(topic.name, self._options.on_damage)
            planned = plan_runs(topic.storage, start or FIRST, stop, SLICE_MESSAGES, self._wanted, damage)
            refuse_expired(topic, self._options.start)
        freeze_imports()
        return partitions_of(planned) or [SlicePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the slices of one task as record batches."""
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
    """Read the messages of one task's slices that pass their filters: in buckets, packed or in the chosen columns.

    Raises `NotFoundError` if it was deleted since it was cut. Raises `DamagedError` if it differs from its written
    form, or lacks entries, and the option ``onDamage`` is not ``skip``.
    """
    planned = cast("tuple[Slice, ...] | SliceRun", partition.value)
    parts = planned.slices() if isinstance(planned, SliceRun) else planned
    messages = (passing(batch, tests) for part in parts for batch in _read_whole(part, options))
    record = POSITIONED
    if options.id_of is not None:
        record, messages = NUMBERED, map(partial(with_numbers, header=options.id_of), messages)
    if options.buckets is not None:
        yield from pack_to_buckets(messages, record, options.buckets)
    else:
        yield from pack(messages, record) if options.packed else messages


def _read_whole(part: Slice, options: TopicReadOptions) -> Iterator[pa.RecordBatch]:
    count = 0
    topic = part.address.topic
    damage = Damage(topic, options.on_damage)
    for batch in read_slice(part, stored_columns(options.columns), encoded=options.packed, damage=damage):
        count += batch.num_rows
        yield laid_out(batch, options.columns)
    # When a ledger is deleted, its rows leave the database at once. A reader that continues finds the next ledger.
    if part.path is None and count + damage.skipped < part.messages:
        raise NotFoundError(
            f"ledger {part.start.ledger} of topic {topic!r} was deleted while it was read:"
            f" {part.messages - count - damage.skipped} messages from {part.start} on are lost. Read again from the"
            " first remaining message"
        )
