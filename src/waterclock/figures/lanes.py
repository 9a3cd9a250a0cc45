"""Sorts batches and rejected messages into lanes, one a source, and counts what each shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from waterclock.batching.batch import Batch, Rejection
from waterclock.errors import InvalidArgumentError
from waterclock.figures.theme import REJECTED
from waterclock.message import Message


@dataclass(slots=True)
class Lane:
    """What one source shows in the stretch that is drawn.

    Attributes
    ----------
    source
        Whose lane it is.
    batches
        Those whose window reaches into the stretch, in order of start.
    accepted
        Messages of any batch whose event time lies in the stretch.
    rejected
        Rejected messages whose event time lies in the stretch, in event-time order.
    """

    source: str
    batches: list[Batch] = field(default_factory=list[Batch])
    accepted: list[Message] = field(default_factory=list[Message])
    rejected: list[Rejection] = field(default_factory=list[Rejection])

    @property
    def size(self) -> int:
        """How many messages it shows."""
        return len(self.accepted) + len(self.rejected)

    def streams(self) -> dict[str, int]:
        """Rank the streams of its messages by name."""
        names = {message.stream for message in self.accepted} | {message.stream for message, _ in self.rejected}
        return {name: rank for rank, name in enumerate(sorted(names))}


def time_bounds(batches: Iterable[Batch], rejected: Iterable[Rejection]) -> tuple[int, int] | None:
    """Find the earliest and the latest time (ns) of all windows and messages; None where there are none."""
    times = [time for batch in batches for time in (batch.start, batch.end)]
    times += [message.event_time for batch in batches for message in batch.messages]
    times += [message.event_time for message, _ in rejected]
    return (min(times), max(times)) if times else None


def sort_into_lanes(
    batches: Sequence[Batch], rejected: Sequence[Rejection], order: Iterable[str] | None, start: int, end: int
) -> list[Lane]:
    """Make a lane of each source and fill it with what lies between ``start`` and ``end`` (ns), both included.

    Parameters
    ----------
    batches, rejected
        In any order; a replay and a live run draw the same picture.
    order
        Which sources get a lane, from top to bottom. Default: every source, by name.
    start, end
        The stretch of event time.

    Raises
    ------
    InvalidArgumentError
        For a rejection whose reason has no mark.
    """
    if order is None:
        order = sorted({batch.source for batch in batches} | {message.source for message, _ in rejected})
    lanes = {source: Lane(source) for source in order}
    for batch in batches:
        lane = lanes.get(batch.source)
        if lane is None or batch.end < start or batch.start > end:
            continue
        lane.batches.append(batch)
        lane.accepted += [message for message in batch.messages if start <= message.event_time <= end]
    for rejection in rejected:
        if rejection.reason not in REJECTED:
            raise InvalidArgumentError(f"rejected: {rejection.reason!r} is none of the reasons {', '.join(REJECTED)}")
        lane = lanes.get(rejection.message.source)
        if lane is not None and start <= rejection.message.event_time <= end:
            lane.rejected.append(rejection)
    for lane in lanes.values():
        lane.batches.sort(key=lambda batch: batch.start)
        lane.rejected.sort(key=lambda rejection: (rejection.message.event_time, rejection.reason))
    return list(lanes.values())


def count_reasons(lanes: Iterable[Lane]) -> tuple[Counter[str], Counter[str]]:
    """Count why the batches of all lanes closed, and why messages were rejected."""
    closed: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for lane in lanes:
        closed.update(batch.reason for batch in lane.batches)
        rejected.update(rejection.reason for rejection in lane.rejected)
    return closed, rejected
