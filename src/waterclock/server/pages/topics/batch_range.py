"""Computes the batches of a range of event time, as a replay would, from a limited number of messages.

For batches by event time, this module reads backward and forward as described in
`waterclock.batching.event_time.replay`, and processes whole columns. For batches by rate, a window depends on all
earlier messages, so the module reads from the point at which batching began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.arrow import POSITIONED_SCHEMA, from_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.event_time.columns import (
    assign_judged,
    closing_times,
    ended_by_gap,
    find_late_and_future,
    read_clocks,
)
from waterclock.batching.event_time.replay import WINDOWS_BACK, ReplayRange, synchronised
from waterclock.batching.event_time.rule import ACCEPTED, CUT_REASONS, LATE, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.batching.outside import aligned_time
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.rule import RateRule
from waterclock.message import Message, Position
from waterclock.server.pages.topics.time_range import TimeRange
from waterclock.time import MAX_NS, MIN_NS
from waterclock.topics.topic import Topic

MOST_JUDGED = 100_000
"""Maximum messages that a picture of batches by event time reads, including margins: 256,000 take 4 s on a busy
machine.
"""

MOST_BY_RATE = 20_000
"""The same by rate, where each message is an object: 23,000 take 2 s on a busy machine."""

_CLOSED_AFTER = 5
"""Batch lengths after a range by which its windows have closed: up to one for their end, and three for the timeout."""

Ints = npt.NDArray[np.int64]
_COLUMNS = ("source", "stream", "event_time", "receive_time")
_OPEN = "open"


class BatchWindow(NamedTuple):
    """A batch, or the window of one that is not decided yet; times in ns."""

    start: int
    end: int
    closed_at: int | None  # None if it is open
    reason: str  # why it closed; ``open`` if more messages may come
    messages: int  # how many it holds so far


class Batched(NamedTuple):
    """Messages of a range with their verdicts, and the windows of their sources."""

    sources: list[str]
    streams: list[str]
    # For each message, the place of its names.
    source_of: npt.NDArray[np.int32]
    stream_of: npt.NDArray[np.int32]
    event_times: Ints  # ns
    # For each message, a reason of rejection, ``accepted`` or ``open``, as its place in `VERDICTS`.
    verdicts: npt.NDArray[np.uint8]
    windows: dict[str, list[BatchWindow]]  # by source, in order of start
    clocks: dict[str, int]  # by source, its clock: the receive clock, or by rate the high-water mark, ns
    read: int  # how many messages were read
    # False if messages that were deleted, or are too old to read, may have cut the windows differently.
    is_exact: bool


VERDICTS = ("accepted", *REJECTIONS.values(), _OPEN)
"""The word for each of the rule's verdict numbers."""


class TooMany(NamedTuple):
    """The range has more messages than a picture of batches reads."""

    limit: int


def batches_by_event_time(
    topic: Topic, rule: EventTimeRule, view: TimeRange, max_skew: int, sources: Collection[str] | None
) -> Batched | TooMany:
    """Find the batches whose windows reach into ``view``, as a replay of the whole topic finds them.

    Parameters
    ----------
    max_skew
        How far receive times may be out of order, ns: it reads so much further, and a silent source closes its windows
        this long after the receive times of the others.
    sources
        None: all.
    """
    since = max(view.start - rule.window, MIN_NS)
    whole = ReplayRange(since, min(view.end + 1, MAX_NS))
    head = topic.head
    last = min(whole.received_until(rule) + max_skew, MAX_NS)  # earlier ones may follow a message received then
    stop = min(head, topic.find(last + 1, "receive_time").position if last < MAX_NS else head)
    first = topic.at(0)
    for windows in WINDOWS_BACK:
        span = ReplayRange.reaching_back(rule, since, whole.until, windows)
        start = max(topic.find(span.received_from(rule), "receive_time").position, first)
        if start == first and topic.index(first) == 0:
            span = whole
        found = _judged(topic, rule, span, start, stop, max_skew, sources)
        if isinstance(found, TooMany) or found.is_exact:
            return found
    found = _judged(topic, rule, whole, first, stop, max_skew, sources)
    return found if isinstance(found, TooMany) else found._replace(is_exact=topic.index(first) == 0)


def _judged(
    topic: Topic,
    rule: EventTimeRule,
    span: ReplayRange,
    start: Position,
    stop: Position,
    max_skew: int,
    sources: Collection[str] | None,
) -> Batched | TooMany:
    if topic.index(stop) - topic.index(start) > MOST_JUDGED:
        return TooMany(MOST_JUDGED)
    read = topic.read_arrow(start, stop, columns=_COLUMNS, source=sources, on_damage="skip") if start < stop else ()
    table = pa.Table.from_batches(read, pa.schema([POSITIONED_SCHEMA.field(name) for name in _COLUMNS]))
    source_names, source_of = _encoded(table, "source")
    stream_names, stream_of = _encoded(table, "stream")
    names = source_names.to_pylist()
    times, received = (np.ascontiguousarray(table[name].to_numpy()) for name in ("event_time", "receive_time"))
    is_known = span.begin is None or bool(
        synchronised(source_of, stream_of, times, received, rule, span, stream_names, with_runs=False).all()
    )
    clocks = np.full(len(names), MIN_NS)
    verdicts = find_late_and_future(times, read_clocks(source_of, received, clocks), rule)
    before = np.zeros(len(times), np.bool_)
    if span.begin is not None:
        before = times < span.begin  # it is unknown whether they were accepted, and irrelevant
        verdicts[before] = LATE
    ended = stop < topic.head
    promised = MAX_NS if ended else _promised(topic, max_skew)
    nows = np.maximum(np.maximum(clocks, promised), MIN_NS + 1) - 1
    found = assign_judged(source_of, stream_of, times, verdicts, rule, nows, stream_names)
    windows = _windows(names, source_of, found.starts, found.ends, found.cuts, found.verdicts, found.order, rule)
    kept = np.flatnonzero(~before)
    return Batched(
        names,
        stream_names.to_pylist(),
        source_of[kept],
        stream_of[kept],
        times[kept],
        found.verdicts[kept],
        {name: [one for one in own if span.since <= one.start < span.until] for name, own in windows.items()},
        {name: int(clock) for name, clock in zip(names, clocks, strict=True) if clock > MIN_NS},
        len(times),
        is_known,
    )


def _encoded(table: pa.Table, name: str) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    encoded = table[name].combine_chunks().dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int32)


def _promised(topic: Topic, max_skew: int) -> int:
    bounds = topic.bounds
    return MIN_NS if bounds is None else max(bounds.end["receive_time"] - max_skew, MIN_NS)


def _windows(
    names: list[str],
    source_of: npt.NDArray[np.int32],
    starts: Ints,
    ends: Ints,
    cuts: npt.NDArray[np.uint8],
    verdicts: npt.NDArray[np.uint8],
    order: npt.NDArray[np.uint32],
    rule: EventTimeRule,
) -> dict[str, list[BatchWindow]]:
    """Group accepted and undecided messages by source and start."""
    inside = order[(verdicts[order] == ACCEPTED) | (verdicts[order] == UNDECIDED)].astype(np.intp)
    found: dict[str, list[BatchWindow]] = {name: [] for name in names}
    if not len(inside):
        return found
    changes = np.flatnonzero(
        np.diff(source_of[inside], prepend=-1).astype(bool) | (np.diff(starts[inside], prepend=starts[inside[0]]) != 0)
    )
    firsts = inside[changes]
    counts = np.diff(np.append(changes, len(inside)))
    by_gap = ended_by_gap(starts[firsts], ends[firsts], rule)
    closed = closing_times(ends[firsts], rule)
    for place, first in enumerate(firsts.tolist()):
        start, end = int(starts[first]), int(ends[first])
        count, name = int(counts[place]), names[source_of[first]]
        if verdicts[first] == UNDECIDED:
            found[name].append(BatchWindow(start, end, None, _OPEN, count))
        else:
            reason = CUT_REASONS.get(int(cuts[first]), "gap" if by_gap[place] else "timeout")
            found[name].append(BatchWindow(start, end, int(closed[place]), reason, count))
    return found


def batches_by_rate(
    topic: Topic, options: dict[str, Any], view: TimeRange, begin: Position | None, sources: Collection[str] | None
) -> Batched | TooMany:
    """Find the batches that reach into ``view`` by feeding every message from ``begin`` on to the batchers.

    With aligned clocks, each message counts at the time to which the offset of its stream in the batch moves it.
    """
    start = topic.at(0) if begin is None else begin
    rule = RateRule.checked(options["batch_length"], options["timeout"], options["max_disorder"])
    last = view.end + _CLOSED_AFTER * rule.batch_length + 2 * rule.max_disorder
    stop = min(topic.head, topic.find(min(last + 1, MAX_NS), "receive_time").position)
    if topic.index(stop) - topic.index(start) > MOST_BY_RATE:
        return TooMany(MOST_BY_RATE)
    batchers: dict[str, RateAwareBatcher] = {}
    windows: dict[str, list[BatchWindow]] = {}
    messages: list[tuple[Message, int, int]] = []
    read = 0
    for source, call in _calls(topic, start, stop, sources):
        read += len(call)
        batcher = batchers.setdefault(source, RateAwareBatcher(**options, clock=lambda: 0.0))
        for batch in batcher.add(call):
            messages += _placed(batch, ACCEPTED)
            window = BatchWindow(batch.start, batch.end, batch.closed_at, batch.reason, len(batch.messages))
            windows.setdefault(source, []).append(window)
    clocks: dict[str, int] = {}
    for source, batcher in batchers.items():
        own = windows.setdefault(source, [])
        if batcher.high_water_mark is not None:
            clocks[source] = batcher.high_water_mark
        if batcher.window is not None:
            own.append(BatchWindow(*batcher.window, None, _OPEN, batcher.buffered))
        for batch in batcher.flush():
            messages += _placed(batch, UNDECIDED)
        windows[source] = [one for one in own if one.end >= view.start and one.start <= view.end]
    names = sorted(batchers)
    streams = sorted({message.stream for message, _, _ in messages})
    places = {name: place for place, name in enumerate(names)}, {name: place for place, name in enumerate(streams)}
    return Batched(
        names,
        streams,
        np.array([places[0][message.source] for message, _, _ in messages], np.int32),
        np.array([places[1][message.stream] for message, _, _ in messages], np.int32),
        np.array([time for _, time, _ in messages], np.int64),
        np.array([verdict for _, _, verdict in messages], np.uint8),
        windows,
        clocks,
        read,
        is_exact=topic.index(start) == 0 or begin is not None,
    )


def _placed(batch: Batch, verdict: int) -> list[tuple[Message, int, int]]:
    return [(one, aligned_time(one, batch.offsets), verdict) for one in batch.messages]


def _calls(
    topic: Topic, start: Position, stop: Position, sources: Collection[str] | None
) -> Iterator[tuple[str, list[Message]]]:
    """Yield each source's share of an entry: its messages arrived together."""
    read = topic.read_arrow(start, stop, source=sources, on_damage="skip") if start < stop else iter(())
    every = (message for batch in read for message in from_arrow(batch))
    for _, entry in groupby(every, key=lambda message: message.position and message.position[:2]):
        by_source: dict[str, list[Message]] = {}
        for message in entry:
            by_source.setdefault(message.source, []).append(message)
        yield from by_source.items()
