"""The accepted messages of one source that are not in a batch yet. Only the contents of the first window are computed.

A window's contents depend on its start and on later messages, but never on earlier messages. So a message out of order
may change all windows after its own. Computing all windows again for each message would take quadratic time in a
backlog. Therefore later messages wait, in order of event time. The first window takes in the waiting messages one by
one, when the clock reaches them. If a conflict or an older message moves messages out of the first window, these
messages wait again.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import attrgetter

from waterclock.batching.event_time.rule import BY_BOUNDARY, BY_CONFLICT, BY_TIME, EventTimeRule
from waterclock.batching.event_time.waiting_times import NEVER, WaitingTimes
from waterclock.batching.event_time.window import Window
from waterclock.message import Message
from waterclock.time import MAX_NS

_stream = attrgetter("stream")

LOOK_AHEAD = 8
"""How many event times the first window takes in ahead of the clock.

With more, ordered traffic needs fewer checks of the window. But one message out of order may push all of them back, so
the worst-case cost grows with it.
"""


class OpenWindows:
    """Accepted messages by event time, and their first window.

    The first window has taken in all messages up to ``_reach``; if that equals ``_last``, its end is known.

    Attributes
    ----------
    ends_from
        The first window ends at this event time (ns) or later; `NEVER` if nothing is open.
    """

    __slots__ = (
        "_at",
        "_boundaries",
        "_cut",
        "_isolated",
        "_last",
        "_older",
        "_reach",
        "_rule",
        "_run",
        "_splits",
        "_start",
        "_streams",
        "_waiting",
        "ends_from",
    )

    def __init__(self, rule: EventTimeRule, *, isolated: bool = False) -> None:
        """``isolated``: whether the first window holds only a conflicting event time."""
        self._rule = rule
        self._splits = rule.on_conflict in ("split", "isolate")
        self._boundaries = frozenset(rule.boundaries)
        # Messages by event time: a single one, or several by stream. A dict for each would double the cost of ordered
        # traffic.
        self._at: dict[int, Message | dict[str, Message]] = {}
        self._waiting = WaitingTimes()
        # The first window: its event times that came in order; in a heap, negated, those that came after later ones;
        # and the event time of each of its streams.
        self._run: list[int] = []
        self._older: list[int] = []
        self._streams: dict[str, int] = {}
        self._isolated = isolated
        self._close()

    def __bool__(self) -> bool:
        return bool(self._at)

    @property
    def count(self) -> int:
        """How many messages are open."""
        return sum(len(group) if isinstance(group, dict) else 1 for group in self._at.values())

    def put(self, message: Message) -> bool:
        """Add an accepted message; False if there is one with its stream and event time."""
        event_time = message.event_time
        group = self._at.get(event_time)
        if group is None:
            self._at[event_time] = message
            if event_time > self._reach:
                self._waiting.push(event_time)
            else:
                self._join(message, is_new_time=True)
            return True
        stream = message.stream
        if isinstance(group, dict):
            if stream in group:
                return False
            group[stream] = message
        else:
            if group.stream == stream:
                return False
            self._at[event_time] = {group.stream: group, stream: message}
        if event_time <= self._reach:
            self._join(message, is_new_time=False)
        return True

    def take_ended(self, before: int) -> list[Window]:
        """Remove and return the windows that end before an event time (ns); all messages before it have been added."""
        taken: list[Window] = []
        while self.ends_from < before:
            self._extend(before)
            if self._reach < self._last or self.ends_from >= before:
                break
            taken.append(self._take_first())
        return taken

    def take_passed(self, passed: int) -> list[Window]:
        """Remove and return the windows whose last event time is before ``passed`` (ns)."""
        taken: list[Window] = []
        while self._at and self._reach < passed:
            self._extend(passed + 1)
            if self._reach < self._last or self._last >= passed:
                break
            taken.append(self._take_first())
        return taken

    def take_all(self) -> list[Window]:
        """Remove and return all windows."""
        taken: list[Window] = []
        while self._at:
            self._extend(NEVER)
            taken.append(self._take_first())
        return taken

    def first_end(self) -> int:
        """Find the end of the first window, ns; `NEVER` if none is open."""
        if not self._splits and self._rule.gap is None and not self._boundaries:
            return self._last if self._at else NEVER
        self._extend(NEVER)
        return self.ends_from

    def windows(self) -> list[Window]:
        """List all windows without removing them."""
        other = OpenWindows(self._rule, isolated=self._isolated)
        other._at = self._at.copy()
        for event_time in sorted(self._at):
            other._waiting.push(event_time)
        if other._at:
            other._open()
        return other.take_all()

    def _close(self) -> None:
        self._start = self._last = self._reach = self.ends_from = NEVER
        self._cut = BY_TIME

    def _open(self) -> None:
        """Begin the first window with the first waiting message."""
        self._start = self._reach = start = self._waiting.pop()
        self._last = start if self._isolated else min(start + self._rule.silence, MAX_NS)
        self._cut = BY_TIME
        self._run, self._older = [start], []
        self._streams = {message.stream: start for message in self._messages_at(start)}
        self._set_end()

    def _extend(self, until: int) -> None:
        """Move waiting messages before ``until`` (ns), and a few more, into the first window, up to its end."""
        waiting = self._waiting
        first = waiting.first
        if self._reach >= self._last:
            return
        at, streams, run = self._at, self._streams, self._run
        ahead = LOOK_AHEAD
        splits, gap, bounded = self._splits, self._rule.gap, bool(self._boundaries)
        while first <= self._last and not (bounded and self._ended_by_boundary(first)):
            if first >= until:
                if not ahead:
                    self._reach = run[-1]
                    self._set_end()
                    return
                ahead -= 1
            if splits:
                group = at[first]
                if isinstance(group, dict):
                    if not streams.keys().isdisjoint(group):
                        self._end_at(first, BY_CONFLICT)
                        break
                    streams.update(dict.fromkeys(group, first))
                elif group.stream in streams:
                    self._end_at(first, BY_CONFLICT)
                    break
                else:
                    streams[group.stream] = first
            run.append(waiting.pop())
            if gap is not None:
                self._reach_on(first, gap)
            first = waiting.first
        self._reach = self._last
        self._set_end()

    def _join(self, message: Message, *, is_new_time: bool) -> None:
        """Add a message to the first window, or cut the window there."""
        event_time = message.event_time
        if event_time < self._start:
            if self._start == NEVER:
                self._waiting.push(event_time)
                self._open()
                self._extend(NEVER)
                return
            self._start_at(event_time)
        if is_new_time:
            if not self._run or event_time > self._run[-1]:
                self._run.append(event_time)
            else:
                heappush(self._older, -event_time)
            if self._rule.gap is not None and self._cut == BY_TIME:
                self._reach_on(event_time, self._rule.gap)
        if event_time > self._start and message.stream in self._boundaries:
            self._end_at(event_time, BY_BOUNDARY)
            self._put_out()
        elif self._splits:
            stream = message.stream
            other = self._streams.setdefault(stream, event_time)
            if other < event_time:
                self._end_at(event_time, BY_CONFLICT)
                self._put_out()
            elif other > event_time:
                self._end_at(other, BY_CONFLICT)
                self._put_out()
                self._streams[stream] = event_time
        self._reach = min(self._reach, self._last)
        self._set_end()

    def _start_at(self, event_time: int) -> None:
        """Start the first window earlier."""
        rule = self._rule
        opened = self._start
        follows = opened - event_time <= rule.silence
        self._start = event_time
        last = min(event_time + (rule.window if follows else rule.silence), MAX_NS)
        is_cut = opened <= last and self._ended_by_boundary(opened)
        if not is_cut and last <= self._last:
            self._last, self._cut = last, BY_TIME
        self._put_out()

    def _reach_on(self, event_time: int, gap: int) -> None:
        """Extend the uncut first window to a gap after one of its messages."""
        self._last = max(self._last, min(event_time + gap, self._start + self._rule.window, MAX_NS))

    def _end_at(self, event_time: int, cut: int) -> None:
        self._last = event_time - 1
        self._cut = cut

    def _put_out(self) -> None:
        """Move messages beyond the end of the first window back to the waiting ones."""
        run, older, last, streams = self._run, self._older, self._last, self._streams
        while True:
            if run and run[-1] > last:
                event_time = run.pop()
            elif older and -older[0] > last:
                event_time = -heappop(older)
            else:
                return
            for message in self._messages_at(event_time):
                if streams.get(message.stream) == event_time:
                    del streams[message.stream]
            self._waiting.push(event_time)

    def _set_end(self) -> None:
        self.ends_from = self._last + (self._cut != BY_TIME) if self._reach == self._last else self._reach + 1

    def _take_first(self) -> Window:
        """Remove and return the first window, whose end is known, and open the next."""
        times = self._run
        if self._older:
            times = sorted([*times, *(-time for time in self._older)])
        messages: list[Message] = []
        for event_time in times:
            group = self._at.pop(event_time)
            if isinstance(group, dict):
                messages += sorted(group.values(), key=_stream)
            else:
                messages.append(group)
        if self._cut == BY_CONFLICT and self._is_boundary(self._last + 1):
            self._cut = BY_BOUNDARY
        window = Window(self._start, self._last, self._cut, self._isolated, messages)
        self._isolated = self._cut == BY_CONFLICT and self._rule.on_conflict == "isolate"
        if self._at:
            self._open()
        else:
            self._run, self._older, self._streams = [], [], {}
            self._close()
        return window

    def _is_boundary(self, event_time: int) -> bool:
        return any(message.stream in self._boundaries for message in self._messages_at(event_time))

    def _ended_by_boundary(self, event_time: int) -> bool:
        """End the first window at this event time if a boundary is there."""
        is_boundary = self._is_boundary(event_time)
        if is_boundary:
            self._end_at(event_time, BY_BOUNDARY)
        return is_boundary

    def _messages_at(self, event_time: int) -> Iterator[Message]:
        group = self._at[event_time]
        return iter(group.values()) if isinstance(group, dict) else iter((group,))
