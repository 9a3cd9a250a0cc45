"""Batching by event time, message by message: what happened within one window belongs together, whenever it arrived."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from waterclock.batching.batch import Batch, CloseReason, Rejection
from waterclock.batching.event_time_state import EventTimeState
from waterclock.batching.rule import EventTimeRule, OnConflict
from waterclock.batching.window import Window, cut_anew, open_window
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.quoting import quoted
from waterclock.time import MAX_NS, MIN_NS, Duration, Time, to_time

_start = attrgetter("start")
_NEVER = MAX_NS + 1
_BEFORE_ALL = MIN_NS - 1


class EventTimeBatcher:
    """Batches the messages of one source by the time at which they happened.

    The batches depend on the set of accepted messages alone, not on the order in which they arrived. With window W,
    maximum delay D and lead L:

    1. received more than D after its event time: rejected ``late`` (exactly D is accepted);
    2. event time more than L after its receive time: rejected ``future``;
    3. same stream and event time as an accepted message: rejected ``duplicate``; the first one received stays;
    4. in event-time order the first message opens a window ``[start, start + W]``; a message whose stream the window
       holds with another event time is a conflict (see ``on_conflict``); equal event times stay together;
    5. a window closes when the receive clock has passed its end + D.

    The receive clock only moves forward. A message received behind it is judged as received now: what the rule can
    no longer take is rejected as late, and nothing enters a window that is closed.

    Parameters
    ----------
    window
        Longest event-time distance between the first and the last message of a batch; 0 keeps equal times only.
    max_delay
        How much later than its event time a message may be received.
    max_lead
        How far ahead of the receive clock an event time may be.
    on_conflict
        ``"split"`` cuts the window before the conflicting event time, which opens the next window (UC3).
        ``"replace"`` leaves the window as it is and keeps of each stream the newest event time; the older messages
        are rejected ``replaced`` when the window closes.
        ``"isolate"`` cuts the window, and all messages of the conflicting event time are a batch of their own,
        ``[c, c]``; the next later message opens a new window.
    streams
        All streams of the source, where each sends its messages in event-time order. Then a window is given out as
        soon as every stream has passed its end (reason ``complete``), with the same contents. The declaration is a
        promise: a message of another stream is an error, an older one of a window already given out is late.

    Raises
    ------
    InvalidArgumentError
        For an option that cannot be meant.

    Notes
    -----
    Source: *Message Batching* (thin-edge.io), use cases UC1 to UC5. Its definition of the timeout says processing time
    and all its use cases say event time; here it is event time. The two other conflict options are the ones that its
    authors put off.
    """

    __slots__ = (
        "_due",
        "_floor",
        "_frontier",
        "_given_out",
        "_newest",
        "_rejected",
        "_rule",
        "_source",
        "_windows",
    )

    def __init__(
        self,
        window: Duration,
        max_delay: Duration,
        max_lead: Duration = 0,
        on_conflict: OnConflict = "split",
        streams: Iterable[str] | None = None,
    ) -> None:
        self._rule = EventTimeRule.checked(window, max_delay, max_lead, on_conflict)
        self._newest = None if streams is None else dict.fromkeys(_declared(streams), _BEFORE_ALL)
        self._source: str | None = None
        self._floor = MIN_NS  # the least receive time that may still come
        self._due = _NEVER  # when the first window closes
        self._frontier = _BEFORE_ALL  # last event time of the newest window given out
        self._windows: list[Window] = []
        # Messages given out before their window's time, and that time: until then QoS 1 may redeliver them.
        self._given_out: dict[tuple[str, int], int] = {}
        self._rejected: list[Rejection] = []

    def add(self, message: Message, now: Time | None = None) -> list[Batch]:
        """Take a message in, and give out the batches that close.

        Parameters
        ----------
        message
            A message of this batcher's source, which is that of the first message.
        now
            The receive clock, ns: when the message was received. Default ``message.receive_time``.

        Returns
        -------
        list of Batch
            In order of start; often empty.

        Raises
        ------
        InvalidArgumentError
            For a message of another source or of a stream that was not declared, and where neither ``now`` nor
            the message says when it was received. The batcher is then as it was before.
        """
        try:
            source = message.source
        except AttributeError:
            raise InvalidArgumentError(
                f"message: {quoted(message)} is a {type(message).__name__}; give one waterclock.Message"
            ) from None
        clock = message.receive_time if now is None else to_time(now, "now")
        if clock is None or source != self._source or self._newest is not None:
            clock = self._admit(message, clock)
        batches: list[Batch] = []
        if clock > self._floor:
            self._floor = clock
            if clock > self._due:
                self._close_due(batches)
        floor = self._floor
        event_time = message.event_time
        if event_time < floor - self._rule.max_delay:
            self._rejected.append(Rejection(message, "late"))
        elif event_time > floor and event_time > floor + self._rule.max_lead:
            self._rejected.append(Rejection(message, "future"))
        else:
            window = self._windows[-1] if self._windows else None
            if window is None or not window.start <= event_time <= window.last:
                self._place(message)
            elif (stream := message.stream) in window.streams:
                self._meet(len(self._windows) - 1, message)
            else:
                window.streams[stream] = message
            if self._newest is not None:
                self._close_complete(message, self._newest, batches)
        return batches

    def advance(self, now: Time) -> list[Batch]:
        """Move the receive clock on: a promise that nothing received at or before ``now`` comes later.

        Returns
        -------
        list of Batch
            The batches whose ``closed_at`` is at or before ``now``, in order of start.
        """
        batches: list[Batch] = []
        self._floor = max(self._floor, to_time(now, "now") + 1)
        if self._floor > self._due:
            self._close_due(batches)
        return batches

    def flush(self) -> list[Batch]:
        """Give out every open window at once, as at the end of the data; the receive clock stays.

        A message that comes later and belongs to a window given out is rejected, as a duplicate or late.
        """
        batches: list[Batch] = []
        self._give_out(len(self._windows), "flush", batches)
        return batches

    @property
    def next_deadline(self) -> int | None:
        """The earliest ``now`` for which `advance` closes a window, ns; None where nothing is open."""
        return self._due if self._windows else None

    def take_rejected(self) -> list[Rejection]:
        """Return the messages rejected since the last call, in the order of their rejection."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def state(self) -> bytes:
        """Write down everything that the batcher knows, options included, for `restore`."""
        return EventTimeState(
            self._rule,
            self._newest,
            self._source,
            self._floor,
            self._frontier,
            self._windows,
            self._given_out,
            self._rejected,
        ).to_bytes()

    @classmethod
    def restore(cls, state: bytes) -> EventTimeBatcher:
        """Make a batcher that continues where the one that wrote ``state`` stood.

        Raises
        ------
        SchemaError
            Where ``state`` is something else or of another version.
        """
        known = EventTimeState.from_bytes(state)
        batcher = cls(*known.rule, known.newest)
        batcher._newest = known.newest
        batcher._source = known.source
        batcher._floor = known.floor
        batcher._frontier = known.frontier
        batcher._windows = known.windows
        batcher._given_out = known.given_out
        batcher._rejected = known.rejected
        batcher._set_due()
        return batcher

    def _admit(self, message: Message, clock: int | None) -> int:
        if clock is None:
            raise InvalidArgumentError(
                f"receive_time: None in {quoted(message)}; set it, or say when the message was received:"
                " add(message, now=…)"
            )
        if self._newest is not None and message.stream not in self._newest:
            raise InvalidArgumentError(
                f"stream: {quoted(message.stream)} was not declared; streams= named {', '.join(self._newest)}"
            )
        if self._source is None:
            self._source = message.source
        elif message.source != self._source:
            raise InvalidArgumentError(
                f"source: {quoted(message.source)} came to the batcher of {quoted(self._source)}; use BySource for"
                " many sources"
            )
        return clock

    def _place(self, message: Message) -> None:
        """Find the place of a message outside the newest window."""
        event_time = message.event_time
        windows = self._windows
        if event_time <= self._frontier:
            known = (message.stream, event_time) in self._given_out
            self._rejected.append(Rejection(message, "duplicate" if known else "late"))
            return
        index = bisect_right(windows, event_time, key=_start) - 1
        if index < 0 or event_time > windows[index].last:
            windows.insert(index + 1, open_window(message, self._rule))
            if index + 2 < len(windows):
                cut_anew(windows, index + 1, [message], self._rule)
            if index < 0:
                self._set_due()
        elif message.stream in windows[index].streams:
            self._meet(index, message)
        else:
            windows[index].streams[message.stream] = message

    def _meet(self, index: int, message: Message) -> None:
        """Put a message into a window that holds its stream already."""
        windows = self._windows
        window = windows[index]
        if window.holds(message):
            self._rejected.append(Rejection(message, "duplicate"))
        elif self._rule.on_conflict == "replace":
            window.put(message)
        elif self._rule.on_conflict == "split" and index == len(windows) - 1 and message.event_time > window.newest:
            window.cut(message.event_time)
            windows.append(open_window(message, self._rule))
            self._set_due()
        else:
            cut_anew(windows, index, [*window.messages(), message], self._rule)
            self._set_due()

    def _set_due(self) -> None:
        self._due = self._windows[0].closed_at(self._rule) if self._windows else _NEVER

    def _close_due(self, batches: list[Batch]) -> None:
        windows = self._windows
        count = 1  # the first one is due, else this would not be called
        while count < len(windows) and windows[count].closed_at(self._rule) < self._floor:
            count += 1
        self._give_out(count, "timeout", batches)

    def _close_complete(self, message: Message, newest: dict[str, int], batches: list[Batch]) -> None:
        newest[message.stream] = max(newest[message.stream], message.event_time)
        passed = min(newest.values())
        count = 0
        for window in self._windows:
            if window.last >= passed:
                break
            count += 1
        self._give_out(count, "complete", batches)

    def _give_out(self, count: int, reason: CloseReason, batches: list[Batch]) -> None:
        if not count:
            return
        assert self._source is not None  # noqa: S101  # there are windows, so there was a message
        rule = self._rule
        given_out = self._windows[:count]
        del self._windows[:count]
        self._frontier = given_out[-1].last
        while self._given_out and next(iter(self._given_out.values())) < self._floor:
            del self._given_out[next(iter(self._given_out))]
        for window in given_out:
            conflict = window.conflicted and reason != "complete"
            batches.append(window.batch(self._source, rule, "conflict" if conflict else reason))
            if window.older:
                self._rejected += window.replaced()
            if reason != "timeout":
                self._given_out.update(dict.fromkeys(window.keys(), window.closed_at(rule)))
        self._set_due()


def _declared(streams: Iterable[str]) -> list[str]:
    if isinstance(streams, str):
        raise InvalidArgumentError(f"streams: {quoted(streams)} is one text; give a list: streams=[{quoted(streams)}]")
    try:
        names = list(streams)
    except TypeError:
        raise InvalidArgumentError(
            f"streams: {quoted(streams)} is a {type(streams).__name__}; give a list of texts, or None"
        ) from None
    if not names:
        raise InvalidArgumentError(f"streams: {quoted(streams)} names no stream; name all of the source, or give None")
    for name in names:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"streams: {quoted(name)} names no stream; give texts that are not empty")
    return names
