"""A window of event-time batching whose end is final, and the batch made from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waterclock.batching.batch import Batch, CloseReason, Rejection
from waterclock.batching.event_time.rule import BY_CONFLICT, BY_TIME, CUT_REASONS, EventTimeRule
from waterclock.message import Message
from waterclock.time import MAX_NS


class Window(NamedTuple):
    """The accepted messages of one source that belong together."""

    start: int  # event time of its first message, ns
    last: int
    """Last event time of the window, ns: start + window, its last message + gap, or one before the cut."""
    cut: int  # why it ended at ``last + 1``: ``BY_CONFLICT`` or ``BY_BOUNDARY``; ``BY_TIME`` if nothing did
    isolated: bool  # whether it holds only one conflicting event time (``on_conflict="isolate"``)
    messages: list[Message]  # by event time, equal ones by stream

    @property
    def end(self) -> int:
        """``last``, or the event time at which the window was cut, which is no longer part of it."""
        return self.last + (self.cut != BY_TIME)

    def ended_by_gap(self, rule: EventTimeRule) -> bool:
        """Return whether a silence ended this window, not its length or a conflict."""
        return self.cut_reason is None and self.last < min(self.start + rule.window, MAX_NS)

    @property
    def cut_reason(self) -> CloseReason | None:
        """``conflict`` if a conflict ended or isolated this window, ``boundary`` if a boundary did; else None."""
        return CUT_REASONS.get(BY_CONFLICT if self.isolated else self.cut)

    def begins_run(self, rule: EventTimeRule) -> bool:
        """Return whether this window begins with a boundary."""
        return any(m.stream in rule.boundaries for m in self.messages if m.event_time == self.start)

    def closed_at(self, rule: EventTimeRule) -> int:
        """Receive-clock time from which no more messages can join, ns."""
        return min(self.end + rule.max_delay, MAX_NS)

    def keys(self) -> Iterator[tuple[str, int]]:
        """Stream and event time of every message."""
        return ((message.stream, message.event_time) for message in self.messages)

    def closed(
        self, source: str, rule: EventTimeRule, reason: CloseReason, run: int | None
    ) -> tuple[Batch, list[Rejection]]:
        """Close this window: build its batch, and reject messages that newer ones have replaced."""
        messages = self.messages
        replaced: list[Rejection] = []
        if rule.on_conflict == "replace":
            newest = {message.stream: message for message in messages}
            if len(newest) < len(messages):
                replaced = [Rejection(m, "replaced") for m in messages if newest[m.stream] is not m]
                messages = [m for m in messages if newest[m.stream] is m]
        batch = Batch(source, self.start, self.end, self.closed_at(rule), reason, tuple(messages), run=run)
        return batch, replaced
