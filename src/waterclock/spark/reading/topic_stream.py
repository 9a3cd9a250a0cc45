"""Reads a topic as a stream: ``spark.readStream.format("waterclock")``. Its offsets are positions of the topic.

An offset is JSON in the query's checkpoint: ``{"position": "3:17:0", "ordinal": 81234, "topic": "9f0c…"}``. The ordinal
is the number of messages before the position, so the difference of two ordinals is a lag in messages. ``topic`` is the
topic's origin. A later topic of the same name has another origin, and refuses the checkpoint.

The start of a stream is recorded as it was requested (``{"position": "earliest"}``, ``{"event_time": …}``), without an
ordinal, and looked up when needed. Spark asks for the start again when it repeats the first micro-batch, and must get
the same answer even if the topic has grown. If the topic is empty, the end offset of the first micro-batch also holds
the requested start.

A start that depends on the time (``{"position": "latest"}``, ``{"event_time": "2h"}``) is looked up once. The first
micro-batch then has no messages, and its end offset holds the position found. For a start that does not depend on the
time, the end offset holds, as ``begin``, the ordinal of the first message in the micro-batch. With this ordinal, the
messages can be counted. ``buckets`` and ``rule`` hold the options with these names. A pipeline reads them from the
offset when it starts again.

If a pipeline's batch length adapts, the end offset of a micro-batch also holds ``length``: the batch length for its
messages, and, as ``since``, the first position to which that length applies. Spark writes the offset before it begins
the micro-batch, and uses the same offset if it repeats the micro-batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from waterclock.connection import Database
from waterclock.errors import NotFoundError
from waterclock.message import Position
from waterclock.spark.buckets import BATCH_LENGTH
from waterclock.spark.options import plainly
from waterclock.spark.reading.source import FIRST, SLICE_MESSAGES, SlicePartition, partitions_of, read_part
from waterclock.spark.reading.topic_read_options import TopicReadOptions, refuse_end
from waterclock.spark.runtime.workers import freeze_imports
from waterclock.topics.catalogue.damage_policy import Damage
from waterclock.topics.finding.finding import FINDABLE, find_start, place_at
from waterclock.topics.finding.positions import Place, beginning, entry_boundary, place_of
from waterclock.topics.reading.planning import plan_runs
from waterclock.topics.topic import Topic

Offset = dict[str, Any]

_EARLIEST, _LATEST = "earliest", "latest"

_log = logging.getLogger(__name__)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds the topic's end on the driver, cuts micro-batches into slices, and reads these in tasks."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self._target: Place | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the start of a new query: a function of the options alone."""
        if self._options.since is not None:
            return self._noted({self._options.by: self._options.since})
        return self._noted({"position": str(self._options.start or _EARLIEST)})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that the option ``maxMessagesPerTrigger`` sets."""
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch: the end of an entry, never past the target."""
        with plainly():
            if self._options.halt_file is not None and Path(self._options.halt_file).exists():
                return start
            self._refuse_other(start)
            storage = self._topic.storage
            if _moves(start):
                since = _LATEST if "position" in start else start[self._options.by]
                return self._written(place_at(storage, since, self._options.by, self._options.on_damage))
            begin = self._begin(start)
            if begin is None:
                return start
            self._refuse_loss(start)
            damage = Damage(storage.name, self._options.on_damage, quiet=True)  # the tasks warn, once per piece
            first = place_of(storage, begin, damage)
            end = self._target or place_of(storage, storage.head())
            if isinstance(limit, ReadMaxRows) and end.ordinal - first.ordinal > limit.max_rows:
                boundary = entry_boundary(storage, first.position, limit.max_rows, damage)
                end = min(end, place_of(storage, boundary, damage))
            if end.ordinal <= start.get("ordinal", first.ordinal):  # deleted messages are passed, too
                return start
            begun = {} if "ordinal" in start else {"begin": first.ordinal}
            return self._written(end) | begun | self._length_after(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember the topic's head: this query reads no further."""
        with plainly():
            self._target = place_of(self._topic.storage, self._topic.head)

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the topic's head, so that the query's progress shows how far it is behind."""
        with plainly():
            return self._written(place_of(self._topic.storage, self._topic.head))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut a micro-batch into slices."""
        with plainly():
            self._refuse_other(end)
            begin = None if _moves(start) else self._begin(start)
            if begin is None or end == start:  # there was nothing to read when the micro-batch began
                return []
            stop, damage = Position.parse(end["position"]), Damage(self._topic.name, self._options.on_damage)
            planned = plan_runs(self._topic.storage, begin, stop, SLICE_MESSAGES, damage=damage)
            # Checked afterwards: messages are deleted from the start of a topic on, so the plan was complete.
            self._refuse_loss(start)
            return partitions_of(planned, end["length"]["batch_length"] if "length" in end else None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the slices of one task as record batches."""
        with plainly():
            length = cast("SlicePartition", partition).batch_length
            for rows in read_part(partition, self._options):
                yield rows if length is None else rows.append_column(BATCH_LENGTH, pa.repeat(length, len(rows)))
        freeze_imports()

    def stop(self) -> None:
        """Release the database's connections."""
        if "_database" in self.__dict__:
            self._database.close()

    @cached_property
    def _database(self) -> Database:
        # Opened on first use, because Spark sends readers to its workers before that, and would hide an earlier error.
        refuse_end(self._options)
        return self._options.connect()

    @cached_property
    def _topic(self) -> Topic:
        return self._database.topic(self._options.topic)

    def _begin(self, offset: Offset) -> Position | None:
        """Find the position of an offset; None if the message that it waits for does not exist yet."""
        for by in FINDABLE:
            if by in offset:
                found = find_start(self._topic.storage, by, offset[by], self._options.on_damage)
                return found.position if found.found else None
        return FIRST if offset["position"] == _EARLIEST else Position.parse(offset["position"])

    def _length_after(self, start: Offset) -> Offset:
        """Return the length of the micro-batch that begins at an offset; nothing if it does not adapt."""
        if self._options.length_file is None:
            return {}
        length = json.loads(Path(self._options.length_file).read_text(encoding="ascii"))
        before = start.get("length")
        if before is None:  # the first messages
            since = str(FIRST)
        elif before["batch_length"] == length["batch_length"]:
            since = before["since"]
        else:
            since = start["position"]
        return {"length": length | {"since": since}}

    @cached_property
    def _origin(self) -> str:
        return self._topic.storage.origin

    def _written(self, place: Place) -> Offset:
        return self._noted({"position": str(place.position), "ordinal": place.ordinal, "topic": self._origin})

    def _noted(self, offset: Offset) -> Offset:
        buckets, rule = self._options.buckets, self._options.rule
        noted = offset if buckets is None else offset | {"buckets": buckets}
        return noted if rule is None else noted | {"rule": json.loads(rule)}

    def _refuse_other(self, offset: Offset) -> None:
        """Check that an offset is of this topic, and not of one that had its name or more of its messages."""
        if "ordinal" not in offset:
            return
        remedy = "Start the query with a new checkpoint, or connect to the original database"
        if offset["topic"] != self._origin:
            raise NotFoundError(
                f"the checkpoint belongs to a topic other than {self._topic.name!r}, perhaps a removed topic of the"
                f" same name or a topic in another database. {remedy}"
            )
        head = place_of(self._topic.storage, self._topic.head)
        if offset["ordinal"] > head.ordinal:
            raise NotFoundError(
                f"the checkpoint has read {offset['ordinal']} messages of topic {self._topic.name!r}, which holds"
                f" only {head.ordinal}: the topic was created again or restored from an older backup. {remedy}"
            )

    def _refuse_loss(self, offset: Offset) -> None:
        position = offset.get("position", _EARLIEST)
        if position == _EARLIEST:
            return
        first = beginning(self._topic.storage)
        if Position.parse(position) >= first.position:
            return
        lost = first.ordinal - offset["ordinal"] if "ordinal" in offset else 1
        if lost <= 0:
            return
        count = f"the {lost} messages" if "ordinal" in offset else "the messages"
        text = (
            f"position {position} of topic {self._topic.name!r} has expired: {count} from there on were"
            f" deleted before this stream read them. The first remaining message is at {first.position}"
        )
        if self._options.fail_on_data_loss:
            raise NotFoundError(
                f"{text}. To continue at that position, set the option failOnDataLoss to false (in a pipeline's file:"
                " fail_on_data_loss in [source]). In future, keep messages longer"
            )
        _log.warning("%s; the stream continues at that position", text)


def _moves(offset: Offset) -> bool:
    """Return whether the position of an offset depends on the time of its look-up."""
    return offset.get("position") == _LATEST or any(isinstance(offset.get(by), str) for by in FINDABLE)
