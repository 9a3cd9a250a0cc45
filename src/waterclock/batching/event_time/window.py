"""A window of event-time batching whose end is final, and the batch that it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waterclock.batching.batch import Batch, CloseReason, Rejection
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.message import Message
from waterclock.time import MAX_NS


class Window(NamedTuple):
    """The accepted messages of one source that belong together.

    Attributes
    ----------
    start
        Event time of its first message, ns.
    last
        Last event time that belongs here, ns: start + window, that of its last message + gap, or one before the cut.
    cut
        Whether a conflict at ``last + 1`` ended it.
    isolated
        Whether it holds only one conflicting event time (``on_conflict="isolate"``).
    messages
        By event time, equal ones by stream.
    """

    start: int
    last: int
    cut: bool
    isolated: bool
    messages: list[Message]

    @property
    def end(self) -> int:
        """``last``, or the event time at which the window was cut, which is no longer part of it."""
        return self.last + self.cut

    def ended_by_gap(self, rule: EventTimeRule) -> bool:
        """Return whether a silence ended this window, not its length or a conflict."""
        return not self.conflicted and self.last < min(self.start + rule.window, MAX_NS)

    @property
    def conflicted(self) -> bool:
        """Whether a conflict ended this window, or isolated it."""
        return self.cut or self.isolated

    def closed_at(self, rule: EventTimeRule) -> int:
        """Receive-clock time at which nothing more can belong here, ns."""
        return min(self.end + rule.max_delay, MAX_NS)

    def keys(self) -> Iterator[tuple[str, int]]:
        """Stream and event time of every message here."""
        return ((message.stream, message.event_time) for message in self.messages)

    def closed(self, source: str, rule: EventTimeRule, reason: CloseReason) -> tuple[Batch, list[Rejection]]:
        """Close this window: build its batch, and reject messages that newer ones have replaced."""
        messages = self.messages
        replaced: list[Rejection] = []
        if rule.on_conflict == "replace":
            newest = {message.stream: message for message in messages}
            if len(newest) < len(messages):
                replaced = [Rejection(m, "replaced") for m in messages if newest[m.stream] is not m]
                messages = [m for m in messages if newest[m.stream] is m]
        return Batch(source, self.start, self.end, self.closed_at(rule), reason, tuple(messages)), replaced
