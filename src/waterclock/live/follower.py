"""Follows a topic: reads new messages, batches them, and puts each batch into a message table exactly once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.columnar.many_sources import ManySources, from_packed, nothing
from waterclock.columnar.message_ids import with_numbers
from waterclock.columnar.packing import pack
from waterclock.columnar.records import NUMBERED, POSITIONED, cells_of_records
from waterclock.columnar.streams.id_stream import IdStream
from waterclock.columnar.streams.watermarks import watermark_of
from waterclock.connection import Database
from waterclock.live.adaptive_stream import AdaptiveRateStream
from waterclock.live.batch_rows import batch_rows, incomplete, outside, rejections
from waterclock.live.follower_row import FollowerState, enter, load, save
from waterclock.live.rules import ById, LiveRule, LiveStream
from waterclock.spark.streaming.batch_rows import Payloads, encoded
from waterclock.spark.writing.put_batches import put_batches
from waterclock.tables.message_table import MessageTable
from waterclock.topics.finding.positions import Place, place_of
from waterclock.topics.topic import Topic

MESSAGES_A_STEP = 20_000
"""Approximate number of messages that one transaction reads: an entry is not cut.

They take some 10 MB, their batches twice that.
"""

_COLUMNS = ["source", "stream", "event_time", "receive_time", "ledger", "entry", "index"]

_log = logging.getLogger(__name__)


@dataclass
class FollowerCounts:
    """The counts of a follower since it began."""

    messages: int = 0  # messages read
    batches: int = 0  # batches put
    rejected: Counter[str] = field(default_factory=Counter[str])  # messages that are in no batch, by reason
    outside: int = 0  # messages that lie outside the window of their batch
    incomplete: int | None = None  # batches by id that lack declared streams; None if none are declared
    missing_ids: int | None = None  # by id, ids between batches that are in no batch; None by time
    open: int = 0  # windows that wait for more messages or for the clock
    behind: int = 0  # messages of the topic that were not read yet
    batch_length: int | None = None  # the length from the next window on, ns, if it is adaptive; else None


class Follower:
    """Batches a topic into a message table of the same database.

    Each step is one transaction: it writes batches, the rule's state, and the position, or nothing. Another
    follower of the same topic and table takes over, and this one's next step raises LeaseLostError.

    Raises `InvalidArgumentError` if the topic was batched into the table with other options.

    Parameters
    ----------
    topic, table
        Source of the messages, and target of the batches.
    rule
        How to batch them.
    max_skew
        How far a receive time may lie behind the newest one of earlier messages, ns. The tick stays behind the
        database's clock by the same amount.
    start
        Where to begin if this topic was never batched into this table.
    sources
        The sources to batch; None: all.
    monotonic
        A clock, ns: an adaptive length follows the time of a step.
    """

    def __init__(
        self,
        database: Database,
        topic: Topic,
        table: MessageTable,
        rule: LiveRule,
        *,
        max_skew: int,
        start: Place,
        sources: Collection[str] | None = None,
        monotonic: Callable[[], int] = moments.monotonic_ns,
    ) -> None:
        self._database = database
        self._topic = topic
        self._table = table
        self._rule = rule
        self._max_skew = max_skew
        self._sources = sources
        self._monotonic = monotonic
        self.counts = FollowerCounts()
        chosen = "" if sources is None else f", source = {sorted(sources)}"
        self._reader_epoch, self._state = enter(topic.storage, table.name, f"{rule.text}{chosen}", start)
        self._stream: LiveStream | None = rule.stream(self._state.stream)
        self._record = POSITIONED if rule.id_header is None else NUMBERED
        if isinstance(rule, ById) and rule.rule.streams is not None:
            self.counts.incomplete = 0

    def step(self, limit: int = MESSAGES_A_STEP) -> int:
        """Read and batch the next messages, or close due batches by the clock; return how many messages were read.

        Raises `LeaseLostError` if another follower has taken over. Raises `UnavailableError` if the database is
        unavailable or busy. Nothing is lost: call it again. Raises `DamagedError` if messages cannot be read.
        """
        if self._stream is None:
            self._state = load(self._topic.storage, self._table.name, self._reader_epoch)
            self._stream = self._rule.stream(self._state.stream)
        stream, self._stream = self._stream, None  # after an error, no message is half processed
        began = self._monotonic()
        count = self._take(stream, limit)
        if isinstance(stream, AdaptiveRateStream):
            stream.worked(began, self._monotonic(), count)
            self.counts.batch_length = stream.batch_length
        if isinstance(stream, IdStream):
            self.counts.missing_ids = stream.missing_ids
        self._stream = stream
        return count

    def _take(self, stream: LiveStream, limit: int) -> int:
        topic, state = self._topic, self._state
        # Read before the topic's end: messages appended later were received at or after this time.
        now = topic.storage.backend.now()
        head = topic.head
        outcomes: list[pa.RecordBatch] = []
        place, clock = state.place, state.clock
        if head > place.position:
            place = place_of(topic.storage, min(topic.advance(place.position, limit), head))
            arrived, newest = self._read(state.place, place)
            outcomes.append(stream.take(arrived, _milliseconds(clock)))
            clock = _later(clock, newest, self._max_skew)
        else:
            clock = _later(clock, now, self._max_skew)
        if stream.wakes_at is not None and _milliseconds(clock) >= stream.wakes_at:
            outcomes.append(stream.take(nothing(self._record), _milliseconds(clock)))
        if outcomes:
            self._write(outcomes, FollowerState(place, clock, stream.state()))
        count = place.ordinal - state.place.ordinal
        self.counts.messages += count
        self.counts.open = stream.open_batches
        self.counts.behind = max(topic.index(topic.head) - place.ordinal, 0)
        return count

    def _read(self, start: Place, stop: Place) -> tuple[ManySources, int | None]:
        """Read messages of the chosen sources, and the newest of their receive times."""
        header = self._rule.id_header
        columns = _COLUMNS if header is None else [*_COLUMNS, "headers"]
        found = self._topic.read_arrow(start.position, stop.position, source=self._sources, columns=columns)
        batches = list(found if header is None else (with_numbers(batch, header) for batch in found))
        rows = sum(batch.num_rows for batch in batches)
        if self._sources is None and rows < stop.ordinal - start.ordinal:
            _log.warning(
                "%d messages of topic %r were deleted before they were batched into table %r",
                stop.ordinal - start.ordinal - rows,
                self._topic.name,
                self._table.name,
                extra=event(
                    "messages_missed",
                    topic=self._topic.name,
                    table=self._table.name,
                    count=stop.ordinal - start.ordinal - rows,
                ),
            )
        if not rows:
            return nothing(self._record), None
        newest = max(pc.call_function("max", [batch.column("receive_time")]).as_py() for batch in batches)
        packed = pa.Table.from_batches(pack(batches, self._record, cells_of_records))
        return from_packed(packed, self._record), newest

    def _write(self, outcomes: list[pa.RecordBatch], state: FollowerState) -> None:
        """Put batches and write the state, in one transaction."""
        written = list(self._encoded(outcomes))
        with self._database.begin() as connection:
            save(self._topic.storage, connection, self._table.name, self._reader_epoch, state)
            for rows, messages in written:
                put_batches(self._table, rows, messages, connection=connection)
        self._state = state
        self.counts.batches += sum(rows.num_rows for rows, _ in written)
        for each in outcomes:
            self.counts.rejected += rejections(each)
            self.counts.outside += outside(each)
            if self.counts.incomplete is not None:
                self.counts.incomplete += incomplete(each)

    def _encoded(self, outcomes: list[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.BinaryArray]]:
        rows = [found for each in outcomes if (found := batch_rows(each)).num_rows]
        return encoded(iter(rows), Payloads(self._topic))


def _later(clock: int | None, received: int | None, max_skew: int) -> int | None:
    """Return the receive clock after a message that was received at a time."""
    if received is None:
        return clock
    return received - max_skew if clock is None else max(clock, received - max_skew)


def _milliseconds(clock: int | None) -> int:
    """Return a clock in the form for the streams: ms, 0 if unknown."""
    return 0 if clock is None else watermark_of(clock)
