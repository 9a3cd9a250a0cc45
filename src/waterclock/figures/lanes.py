"""Sorts batches and rejected messages into lanes, one per source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.outside import aligned_time
from waterclock.message import Message

_SECOND = 1_000_000_000


@dataclass(slots=True)
class Lane:
    """The contents of one source in the drawn stretch."""

    source: str  # the source of the lane
    batches: list[Batch] = field(default_factory=list[Batch])
    """Batches whose window reaches into the stretch, in order of start."""
    accepted: list[Message] = field(default_factory=list[Message])
    """Messages of any batch whose event time lies in the stretch."""
    outside: list[Message] = field(default_factory=list[Message])
    """Accepted messages that lie outside their batch's window."""
    rejected: list[Rejection] = field(default_factory=list[Rejection])
    """Rejected messages whose event time lies in the stretch, in event-time order."""

    @property
    def size(self) -> int:
        """How many messages it shows."""
        return len(self.accepted) + len(self.rejected)

    def streams(self) -> dict[str, int]:
        """Rank the streams of its messages by name."""
        names = {message.stream for message in self.accepted} | {message.stream for message, _ in self.rejected}
        return {name: rank for rank, name in enumerate(sorted(names))}


def time_bounds(batches: Sequence[Batch], rejected: Sequence[Rejection]) -> tuple[int, int] | None:
    """Find the stretch of event time (ns) that shows all windows and the messages near them; None if all is empty.

    A message further away than ten times the windows' stretch is left out: a single wrong clock would squeeze the rest
    into a pixel.
    """
    messages = chain(
        (m for batch in map(at_aligned_times, batches) for m in batch.messages), (message for message, _ in rejected)
    )
    times = [message.event_time for message in messages]
    if not batches:
        return (min(times), max(times)) if times else None
    first, last = min(batch.start for batch in batches), max(batch.end for batch in batches)
    reach = 10 * max(last - first, _SECOND)
    near = [time for time in times if first - reach <= time <= last + reach]
    return min([first, *near]), max([last, *near])


def at_aligned_times(batch: Batch) -> Batch:
    """Move the messages of a batch to the times by which its window was chosen."""
    if not batch.offsets:
        return batch
    moved = (m.replace(event_time=aligned_time(m, batch.offsets)) for m in batch.messages)
    return replace(batch, messages=tuple(sorted(moved, key=lambda message: message.event_time)), offsets={})


def sort_into_lanes(
    batches: Sequence[Batch], rejected: Sequence[Rejection], order: Iterable[str] | None, start: int, end: int
) -> list[Lane]:
    """Build a lane for each source with its batches and messages from ``start`` to ``end`` (ns), both included.

    Parameters
    ----------
    batches, rejected
        In any order; a replay and a live run draw the same picture.
    order
        Which sources get a lane, from top to bottom. Default: every source, by name.
    start, end
        The stretch of event time.
    """
    if order is None:
        order = sorted({batch.source for batch in batches} | {message.source for message, _ in rejected})
    lanes = {source: Lane(source) for source in order}
    for batch in map(at_aligned_times, batches):
        lane = lanes.get(batch.source)
        if lane is not None:
            lane.accepted += [message for message in batch.messages if start <= message.event_time <= end]
            outside = batch.messages_outside()
            lane.outside += [message for message in outside if start <= message.event_time <= end]
            if batch.start <= end and batch.end >= start:
                lane.batches.append(batch)
    for rejection in rejected:
        lane = lanes.get(rejection.message.source)
        if lane is not None and start <= rejection.message.event_time <= end:
            lane.rejected.append(rejection)
    for lane in lanes.values():
        lane.batches.sort(key=lambda batch: (batch.start, batch.end))
        lane.rejected.sort(key=lambda rejection: (rejection.message.event_time, rejection.reason))
    return list(lanes.values())
