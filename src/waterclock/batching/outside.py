"""Counts the messages of a batch that lie outside its window, by stream and by distance."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from waterclock.message import Message

DISTANCES = (0.25, 0.5, 1, 2, 3, 10, 1000)
"""Upper bounds of the distances from a window that are counted separately, in batch lengths; the last count is
unbounded. A timeout is at most three lengths, and beyond 1000 lengths a message is of another era.
"""

_QUARTERS = tuple(round(4 * distance) for distance in DISTANCES)
_NONE = (0,) * (len(DISTANCES) + 1)


class OutsideCounts(NamedTuple):
    """How many messages of a stream lie outside their batches' windows, by distance; see `DISTANCES`.

    Attributes
    ----------
    before
        Before the window: the message came after its own window had closed.
    after
        After the window: the message was let through because it was too far ahead to wait.
    """

    before: tuple[int, ...] = _NONE
    after: tuple[int, ...] = _NONE

    @property
    def total(self) -> int:
        """Number of messages."""
        return sum(self.before) + sum(self.after)

    def plus(self, other: OutsideCounts) -> OutsideCounts:
        """Add the counts of other batches."""
        sums = [tuple(map(sum, zip(*sides, strict=True))) for sides in zip(self, other, strict=True)]
        return OutsideCounts(*sums)


def outside_messages(messages: Sequence[Message], start: int, end: int) -> list[Message]:
    """List the messages of a batch that lie outside its window, in event-time order.

    A message counts if it lies outside by more than half a period of its stream: less may be jitter. The period is the
    window's length divided by the number of different event times that the stream has in the batch.
    """
    if not messages or (messages[0].event_time >= start and messages[-1].event_time <= end):
        return []
    times: dict[str, set[int]] = {}
    for message in messages:
        times.setdefault(message.stream, set()).add(message.event_time)
    length = end - start
    return [m for m in messages if 2 * len(times[m.stream]) * _distance(m, start, end) > length]


def count_outside(messages: Sequence[Message], start: int, end: int) -> dict[str, OutsideCounts]:
    """Count the messages that lie outside their window, for each stream that has any; see `outside_messages`."""
    bounds = [quarters * (end - start) for quarters in _QUARTERS]
    found: dict[str, tuple[list[int], list[int]]] = {}
    for message in outside_messages(messages, start, end):
        sides = found.setdefault(message.stream, ([*_NONE], [*_NONE]))
        sides[message.event_time > end][bisect_left(bounds, 4 * _distance(message, start, end))] += 1
    return {stream: OutsideCounts(tuple(before), tuple(after)) for stream, (before, after) in sorted(found.items())}


def _distance(message: Message, start: int, end: int) -> int:
    return max(start - message.event_time, message.event_time - end, 0)
