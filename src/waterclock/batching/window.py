"""The open window of event-time batching, and how the windows of a source are cut anew after a message out of order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from waterclock.batching.batch import Batch, CloseReason, Rejection
from waterclock.batching.rule import EventTimeRule
from waterclock.message import Message
from waterclock.time import MAX_NS

_in_order = attrgetter("event_time", "stream")
_event_time = attrgetter("event_time")


class Window:
    """The accepted messages of one source that belong together so far.

    Attributes
    ----------
    start
        Event time of its first message, ns.
    last
        Last event time that belongs here, ns: start + window, or one before the cut.
    isolated
        Holds one conflicting event time alone (``on_conflict="isolate"``).
    streams
        The message of each stream; with ``on_conflict="replace"`` the newest one.
    older
        Messages that a newer one of their stream replaced, by stream and event time.
    """

    __slots__ = ("_cut", "isolated", "last", "older", "start", "streams")

    def __init__(self, start: int, window: int, *, isolated: bool = False) -> None:
        self.start = start
        self.last = min(start + window, MAX_NS)  # an end beyond int64 could not be written down
        self.isolated = isolated
        self.streams: dict[str, Message] = {}
        self.older: dict[tuple[str, int], Message] = {}
        self._cut = False

    @property
    def end(self) -> int:
        """``last``, or the event time at which the window was cut, which is no longer part of it."""
        return self.last + 1 if self._cut else self.last

    @property
    def conflicted(self) -> bool:
        """A conflict ended this window, or put it apart."""
        return self._cut or self.isolated

    @property
    def newest(self) -> int:
        """Event time of the newest message here, ns."""
        return max(map(_event_time, self.streams.values()))

    def closed_at(self, rule: EventTimeRule) -> int:
        """Receive-clock time at which nothing more can belong here, ns."""
        return min(self.end + rule.max_delay, MAX_NS)

    def cut(self, at: int) -> None:
        """End the window before event time ``at``."""
        self.last = at - 1
        self._cut = True

    def holds(self, message: Message) -> bool:
        """Tell whether a message of this stream and event time is here."""
        other = self.streams.get(message.stream)
        if other is None:
            return False
        return other.event_time == message.event_time or (message.stream, message.event_time) in self.older

    def put(self, message: Message) -> None:
        """Take the message in; of two messages of a stream the newer one stays, the other is set aside."""
        stream = message.stream
        other = self.streams.get(stream)
        if other is not None:
            if other.event_time > message.event_time:
                message, other = other, message
            self.older[stream, other.event_time] = other
        self.streams[stream] = message

    def messages(self) -> list[Message]:
        """List all messages here, also those set aside, in no order."""
        return [*self.streams.values(), *self.older.values()]

    def keys(self) -> Iterator[tuple[str, int]]:
        """Stream and event time of every message here, also of those set aside."""
        yield from ((message.stream, message.event_time) for message in self.streams.values())
        yield from self.older

    def batch(self, source: str, rule: EventTimeRule, reason: CloseReason) -> Batch:
        """Make the batch that this window closes as."""
        messages = tuple(sorted(self.streams.values(), key=_in_order))
        return Batch(source, self.start, self.end, self.closed_at(rule), reason, messages)

    def replaced(self) -> list[Rejection]:
        """Reject the messages set aside, in event-time order."""
        return [Rejection(message, "replaced") for message in sorted(self.older.values(), key=_in_order)]


def open_window(message: Message, rule: EventTimeRule) -> Window:
    """Begin a window with its first message."""
    window = Window(message.event_time, rule.window)
    window.streams[message.stream] = message
    return window


def cut_anew(windows: list[Window], index: int, messages: Iterable[Message], rule: EventTimeRule) -> None:
    """Cut the windows from ``index`` on anew, in place, until one begins as it did before.

    What a window holds depends on its start and on what follows it, never on what came before. So a message out of
    order changes only the windows from its own up to the first one whose beginning stays.

    Parameters
    ----------
    windows
        Windows of one source in order of start, without overlap.
    index
        The first window to cut anew.
    messages
        What that window holds now; the other windows keep their messages.
    """
    fresh: list[Window] = []
    for group in _groups(messages):
        _lay(group, fresh, rule)
    following = index + 1
    while following < len(windows):
        old = windows[following]
        first, *others = _groups(old.messages())
        known = len(fresh)
        _lay(first, fresh, rule)
        if len(fresh) > known and fresh[-1].isolated == old.isolated:
            fresh.pop()
            break
        for group in others:
            _lay(group, fresh, rule)
        following += 1
    windows[index:following] = fresh


def _groups(messages: Iterable[Message]) -> Iterator[list[Message]]:
    for _, group in groupby(sorted(messages, key=_event_time), _event_time):
        yield list(group)


def _lay(group: list[Message], windows: list[Window], rule: EventTimeRule) -> None:
    # Messages of one event time stay together (rule 4 of batching by event time), so they conflict together.
    event_time = group[0].event_time
    isolated = False
    if (
        windows
        and event_time <= windows[-1].last
        and rule.on_conflict != "replace"
        and any(message.stream in windows[-1].streams for message in group)
    ):
        windows[-1].cut(event_time)
        isolated = rule.on_conflict == "isolate"
    if not windows or event_time > windows[-1].last:
        windows.append(Window(event_time, 0 if isolated else rule.window, isolated=isolated))
    for message in group:
        windows[-1].put(message)
