"""Counts the messages of a batch that lie outside its window, by stream and by distance from the window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS

DISTANCES = (0.25, 0.5, 1, 2, 3, 10, 1000)
"""Upper bounds of the distances from a window that are counted separately, in batch lengths; the last count is
unbounded. A timeout is at most three lengths, and beyond 1000 lengths a message is of another era.
"""

_QUARTERS = tuple(round(4 * distance) for distance in DISTANCES)
_NONE = (0,) * (len(DISTANCES) + 1)


class OutsideCounts(NamedTuple):
    """How many messages of a stream lie outside their batches' windows, by distance; see `DISTANCES`."""

    before: tuple[int, ...] = _NONE  # before the window: the message came after its own window had closed
    after: tuple[int, ...] = _NONE  # after the window: the message was let through because it was too far ahead to wait

    @property
    def total(self) -> int:
        """Number of messages."""
        return sum(self.before) + sum(self.after)

    def plus(self, other: OutsideCounts) -> OutsideCounts:
        """Add the counts of other batches."""
        sums = [tuple(map(sum, zip(*sides, strict=True))) for sides in zip(self, other, strict=True)]
        return OutsideCounts(*sums)


def aligned_time(message: Message, offsets: Mapping[str, int]) -> int:
    """Return the event time of a message of a batch in the time of its window, ns, within 64 bits.

    The offset is that of its stream's latest message; the message's own may have been another.
    """
    return min(max(message.event_time + offsets.get(message.stream, 0), MIN_NS), MAX_NS)


def outside_messages(
    messages: Sequence[Message], start: int, end: int, offsets: Mapping[str, int]
) -> list[tuple[Message, int]]:
    """List the messages of a batch that lie outside its window, in event-time order.

    A message counts if it lies outside by more than half a period of its stream: less may be jitter. The period is the
    window's length divided by the number of different event times that the stream has in the batch.

    Returns each with its distance from the window, ns, which is negative before the window.

    Parameters
    ----------
    messages
        In event-time order.
    start, end
        The window, ns.
    offsets
        ns that are added to the times of some streams.
    """
    if not messages or (not offsets and messages[0].event_time >= start and messages[-1].event_time <= end):
        return []
    times: dict[str, set[int]] = {}
    for message in messages:
        times.setdefault(message.stream, set()).add(message.event_time)
    found: list[tuple[Message, int]] = []
    for message in messages:
        time = aligned_time(message, offsets) if offsets else message.event_time
        if start <= time <= end:
            continue
        distance = max(time - end, 0) or min(time - start, 0)
        if 2 * len(times[message.stream]) * abs(distance) > end - start:
            found.append((message, distance))
    return found


def count_outside(
    messages: Sequence[Message], start: int, end: int, offsets: Mapping[str, int]
) -> dict[str, OutsideCounts]:
    """Count the messages that lie outside their window, for each stream that has any; see `outside_messages`."""
    bounds = [quarters * (end - start) for quarters in _QUARTERS]
    found: dict[str, tuple[list[int], list[int]]] = {}
    for message, distance in outside_messages(messages, start, end, offsets):
        sides = found.setdefault(message.stream, ([*_NONE], [*_NONE]))
        sides[distance > 0][bisect_left(bounds, 4 * abs(distance))] += 1
    return {stream: OutsideCounts(tuple(before), tuple(after)) for stream, (before, after) in sorted(found.items())}
