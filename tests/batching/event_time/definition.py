"""Batching by event time as the design states it, written for reading and not for speed.

It shares no code with the package and takes the square of the number of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from waterclock.message import Message

LARGEST = 2**63 - 1


class Rule(NamedTuple):
    """The options, int ns."""

    window: int
    max_delay: int
    max_lead: int = 0
    on_conflict: str = "split"
    gap: int | None = None
    boundaries: tuple[str, ...] = ()


class Window(NamedTuple):
    """A closed window; ``messages`` by event time and stream."""

    start: int
    end: int
    closed_at: int
    cut: str | None
    run: int | None
    messages: tuple[Message, ...]


class Outcome(NamedTuple):
    """What becomes of the messages of one source."""

    windows: list[Window]
    rejected: dict[Message, str]
    undecided: set[Message]


def batches_of(messages: Sequence[Message], rule: Rule, now: int = LARGEST) -> Outcome:
    """Apply the rules to the messages of one source, given in order of arrival, as at receive-clock time ``now``."""
    accepted: list[Message] = []
    rejected: dict[Message, str] = {}
    undecided: set[Message] = set()
    for message in sorted(messages, key=_received):
        if _received(message) > now:
            undecided.add(message)
        elif _received(message) - message.event_time > rule.max_delay:
            rejected[message] = "late"
        elif message.event_time > _received(message) + rule.max_lead:
            rejected[message] = "future"
        elif any((other.stream, other.event_time) == (message.stream, message.event_time) for other in accepted):
            rejected[message] = "duplicate"
        else:
            accepted.append(message)
    windows: list[Window] = []
    runs = [m.event_time for m in accepted if m.stream in rule.boundaries]
    for start, end, cut, held in _cut(accepted, rule):
        closed_at = min(end + rule.max_delay, LARGEST)
        kept = [m for m in held if rule.on_conflict != "replace" or not _has_newer(m, held)]
        if closed_at > now:
            undecided.update(held)
        else:
            rejected.update({m: "replaced" for m in held if m not in kept})
            ordered = sorted(kept, key=lambda m: (m.event_time, m.stream))
            run = max((time for time in runs if time <= start), default=None)
            windows.append(Window(start, end, closed_at, cut, run, tuple(ordered)))
    return Outcome(windows, rejected, undecided)


def _cut(accepted: list[Message], rule: Rule) -> list[tuple[int, int, str | None, list[Message]]]:
    """Cut accepted messages into (start, end, what cut it, messages)."""
    if not accepted:
        return []
    start = min(m.event_time for m in accepted)
    end = min(start + rule.window, LARGEST)
    times = sorted({m.event_time for m in accepted})
    if rule.gap is not None:
        followed = {time for time, after in pairwise(times) if after - time <= rule.gap}
        end = min(end, next(time for time in times if time not in followed) + rule.gap)
    inside = [m for m in accepted if m.event_time <= end]
    boundaries = [m.event_time for m in inside if m.stream in rule.boundaries and m.event_time > start]
    conflicts = [m.event_time for m in inside if any(_same_stream_before(other, m) for other in inside)]
    if rule.on_conflict in ("replace", "keep"):
        conflicts = []
    if not conflicts and not boundaries:
        later = [m for m in accepted if m.event_time > end]
        return [(start, end, None, inside), *_cut(later, rule)]
    at = min(conflicts + boundaries)
    first = (start, at, "boundary" if at in boundaries else "conflict", [m for m in inside if m.event_time < at])
    if at in boundaries or rule.on_conflict == "split":
        return [first, *_cut([m for m in accepted if m.event_time >= at], rule)]
    apart = (at, at, "conflict", [m for m in inside if m.event_time == at])
    return [first, apart, *_cut([m for m in accepted if m.event_time > at], rule)]


def _same_stream_before(other: Message, message: Message) -> bool:
    return other.stream == message.stream and other.event_time < message.event_time


def _has_newer(message: Message, held: list[Message]) -> bool:
    return any(_same_stream_before(message, other) for other in held)


def _received(message: Message) -> int:
    assert message.receive_time is not None
    return message.receive_time
