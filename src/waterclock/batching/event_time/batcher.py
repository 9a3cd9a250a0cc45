"""Batches single messages by event time: messages of one window belong together, in whatever order they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapreplace

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, CloseReason, Rejection
from waterclock.batching.declared_streams import declared_streams
from waterclock.batching.event_time.given_out import GivenOut
from waterclock.batching.event_time.open_windows import OpenWindows
from waterclock.batching.event_time.rule import EventTimeRule, OnConflict
from waterclock.batching.event_time.state import EventTimeState
from waterclock.batching.event_time.waiting_times import NEVER
from waterclock.batching.event_time.window import Window
from waterclock.batching.stats import BatcherStats
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS, Duration, Time, to_time

_BEFORE_ALL = MIN_NS - 1


class EventTimeBatcher:
    """Batches the messages of one source by the time at which they happened.

    The batches depend only on the set of accepted messages, not on their order of arrival. With window W, maximum delay
    D and lead L:

    1. received more than D after its event time: rejected ``late`` (exactly D is accepted);
    2. event time more than L after its receive time: rejected ``future``;
    3. same stream and event time as an accepted message: rejected ``duplicate``; the first one received is kept;
    4. in event-time order the first message opens a window ``[start, start + W]``; a message whose stream the window
       holds with another event time is a conflict (see ``on_conflict``); equal event times stay together;
    5. a window closes when the receive clock has passed its end + D.

    With a ``gap`` G windows are sessions: a window also ends at a silence longer than G. Its end is the event time of
    its last message + G, and at most start + W.

    The receive clock only moves forward. A message with an earlier receive time is treated as received now. If that is
    too late, it is rejected as late, so no message enters a closed window.

    Parameters
    ----------
    window
        Longest event-time distance between the first and the last message of a batch; 0 keeps equal times only. With
        ``gap``, the longest session.
    max_delay
        How much later than its event time a message may be received.
    max_lead
        How far ahead of the receive clock an event time may be.
    on_conflict
        ``"split"`` cuts the window before the conflicting event time, which opens the next window (UC3).
        ``"replace"`` leaves the window as it is and keeps the newest event time of each stream; the older messages are
        rejected ``replaced`` when the window closes. ``"isolate"`` cuts the window, and all messages of the conflicting
        event time are a batch of their own, ``[c, c]``; the next later message opens a new window. ``"keep"`` leaves
        all messages of a stream in the window. It is the default with ``gap``, and ``"split"`` is the default without.
    streams
        All streams of the source, if each sends its messages in event-time order. Then a window closes as
        soon as every stream has passed its end (reason ``complete``), with the same contents. The declaration is a
        promise: a message of another stream is an error, and an older message of a window already returned is late.
    gap
        Longest event-time distance between a message of a batch and the next one (reason ``gap``). Default: limited
        only by the window.
    boundaries
        Streams whose messages begin runs. Such a message cuts the window before its event time (reason ``boundary``),
        and is in the next window, which starts with it. ``Batch.run`` is the event time of the last boundary at or
        before the start of a batch. If ``streams`` are declared, these must be among them.

    Raises
    ------
    InvalidArgumentError
        For an invalid option.

    Notes
    -----
    Source: *Message Batching* (thin-edge.io), use cases UC1 to UC5. Its definition of the timeout uses processing time,
    but all its use cases use event time, as this class does. Its authors postponed the conflict options other than
    ``"split"``.
    """

    __slots__ = ("_ahead", "_floor", "_given_out", "_newest", "_open", "_rejected", "_rule", "_slowest", "_source")

    def __init__(
        self,
        window: Duration,
        max_delay: Duration,
        max_lead: Duration = 0,
        on_conflict: OnConflict | None = None,
        streams: Iterable[str] | None = None,
        gap: Duration | None = None,
        boundaries: Iterable[str] | None = None,
    ) -> None:
        self._rule = EventTimeRule.checked(window, max_delay, max_lead, on_conflict, gap, boundaries)
        self._newest = None if streams is None else dict.fromkeys(declared_streams(streams), _BEFORE_ALL)
        if self._newest is not None and (others := set(self._rule.boundaries) - self._newest.keys()):
            raise InvalidArgumentError(
                f"boundaries must be among the streams {list(self._newest)}, got {sorted(others)}"
            )
        self._slowest = _heap(self._newest)
        self._source: str | None = None
        self._floor = MIN_NS  # the earliest receive time that may still come
        self._ahead = 0  # how long before it the newest arrival was received, ns
        self._open = OpenWindows(self._rule)
        self._given_out = GivenOut(near=self._rule.window + self._rule.max_delay)
        self._rejected: list[Rejection] = []

    def add(self, message: Message, now: Time | None = None) -> list[Batch]:
        """Add a message, and return the batches that it closes.

        Parameters
        ----------
        message
            A message of this batcher's source, which the first message sets.
        now
            The receive clock, ns: when the message was received. Default ``message.receive_time``.

        Returns
        -------
        list of Batch
            In order of start; often empty.

        Raises
        ------
        InvalidArgumentError
            For a message of another source or of a stream that was not declared, and if neither ``now`` nor the message
            has a receive time. The batcher is then unchanged.
        """
        try:
            source = message.source
        except AttributeError:
            raise InvalidArgumentError(f"message must be a waterclock.Message, got {quoted(message)}") from None
        clock = message.receive_time if now is None else to_time(now, "now")
        if clock is None or source != self._source or self._newest is not None:
            clock = self._check_source_and_clock(message, clock)
        batches: list[Batch] = []
        max_delay = self._rule.max_delay
        floor = self._floor
        if clock > floor:
            self._floor = floor = clock
            self._ahead = 0
            if clock - max_delay > self._open.ends_from:
                self._give_out(self._open.take_ended(clock - max_delay), "timeout", batches)
        else:
            self._ahead = floor - clock
        event_time = message.event_time
        if event_time < floor - max_delay:
            self._rejected.append(Rejection(message, "late"))
        elif event_time > floor and event_time > floor + self._rule.max_lead:
            self._rejected.append(Rejection(message, "future"))
        else:
            if event_time <= self._given_out.newest and self._given_out.covers(event_time):
                known = (message.stream, event_time) in self._given_out.early
                self._rejected.append(Rejection(message, "duplicate" if known else "late"))
            elif not self._open.put(message):
                self._rejected.append(Rejection(message, "duplicate"))
            if self._newest is not None:
                self._close_complete(message, self._newest, batches)
        return batches

    def advance(self, now: Time) -> list[Batch]:
        """Advance the receive clock: a promise that no message received at or before ``now`` comes later.

        Returns
        -------
        list of Batch
            The batches whose ``closed_at`` is at or before ``now``, in order of start.
        """
        batches: list[Batch] = []
        self._floor = max(self._floor, to_time(now, "now") + 1)
        before = self._floor - self._rule.max_delay if self._floor <= MAX_NS else NEVER
        self._give_out(self._open.take_ended(before), "timeout", batches)
        return batches

    def flush(self) -> list[Batch]:
        """Close every open window at once, as at the end of the data; the receive clock stays.

        A later message for a returned window is rejected, as a duplicate or late.
        """
        batches: list[Batch] = []
        self._give_out(self._open.take_all(), "flush", batches)
        return batches

    def reset(self, source: str | None = None) -> list[Batch]:
        """Reset the receive clock, for example after a message that was received by a clock far ahead.

        Open messages are returned, as by `flush`, and the next message sets the clock again. The batcher still knows
        which event times it has returned, so that no message is in two batches and no two batches have the same
        identity. A message for a returned window is rejected, even if the clock's jump closed that window too early. If
        traffic is scattered in time, the gaps between such windows may count as returned, too. Batches that start
        before the last boundary have no run.

        Parameters
        ----------
        source
            Must be this batcher's source, which is the default.

        Returns
        -------
        list of Batch
            In order of start.

        Raises
        ------
        InvalidArgumentError
            For another source.
        """
        if source is not None and source != self._source:
            whose = "it has none yet" if self._source is None else quoted(self._source)
            raise InvalidArgumentError(f"source must be the batcher's source ({whose}), got {quoted(source)}")
        batches = self.flush()
        self._floor, self._ahead = MIN_NS, 0
        self._given_out.begun_anew = True
        if self._newest is not None:
            self._newest = dict.fromkeys(self._newest, _BEFORE_ALL)
            self._slowest = _heap(self._newest)
        return batches

    def stats(self) -> BatcherStats:
        """Return the state of the receive clock, and how far it is ahead of the messages."""
        clock = None if self._floor == MIN_NS else min(self._floor, MAX_NS)
        return BatcherStats(self._source, clock, self._ahead, self._open.count, {}, {})

    @property
    def receive_clock(self) -> int:
        """The earliest receive time that may still come, ns; before all times if no message has come."""
        return self._floor

    def is_done(self, since: int, promised: int) -> bool:
        """Return whether the batcher holds no state that a new one would need.

        That is: no message was received after ``since``, no window is open, no rejection is untaken, a message for a
        returned window can only be late, and no run has begun.

        Parameters
        ----------
        since
            A receive time, ns.
        promised
            The earliest receive time that may still come, ns, according to the caller. The batcher's own clock may lag
            behind it after `flush` and `reset`.
        """
        if self._open or self._rejected or self._floor > since or self._given_out.run is not None:
            return False
        return self._given_out.newest < max(self._floor, promised) - self._rule.max_delay

    @property
    def next_deadline(self) -> int | None:
        """The earliest ``now`` for which `advance` closes a window, ns; None if nothing is open."""
        return min(self._open.first_end() + self._rule.max_delay, MAX_NS) if self._open else None

    @property
    def sleeps_until(self) -> int | None:
        """A bound at or before `next_deadline`, ns, found without looking at messages; None if nothing is open."""
        return min(self._open.ends_from + self._rule.max_delay, MAX_NS) if self._open else None

    def take_rejected(self) -> list[Rejection]:
        """Return the messages rejected since the last call, in the order of their rejection."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def state(self) -> bytes:
        """Encode the whole state of the batcher, including its options, for `restore`."""
        return EventTimeState(
            self._rule,
            self._newest,
            self._source,
            self._floor,
            self._open.windows(),
            self._given_out,
            self._rejected,
        ).to_bytes()

    @classmethod
    def restore(cls, state: bytes) -> EventTimeBatcher:
        """Restore a batcher from ``state``, to continue after its last message.

        Raises
        ------
        SchemaError
            If ``state`` is something else or of another version.
        """
        known = EventTimeState.from_bytes(state)
        batcher = cls(**known.rule._asdict(), streams=known.newest)
        batcher._newest = known.newest
        batcher._slowest = _heap(known.newest)
        batcher._source = known.source
        batcher._floor = known.floor
        batcher._open = OpenWindows(known.rule, isolated=bool(known.windows) and known.windows[0].isolated)
        for window in known.windows:
            for message in window.messages:
                batcher._open.put(message)
        batcher._given_out = known.given_out
        batcher._rejected = known.rejected
        return batcher

    def _check_source_and_clock(self, message: Message, clock: int | None) -> int:
        if clock is None:
            raise InvalidArgumentError(
                f"receive_time must be set, got None in {quoted(message)}. Set it, or pass the time:"
                " add(message, now=…)"
            )
        if self._newest is not None and message.stream not in self._newest:
            raise InvalidArgumentError(
                f"stream must be one of {', '.join(self._newest)}, as declared in streams=, got"
                f" {quoted(message.stream)}"
            )
        if self._source is None:
            self._source = message.source
        elif message.source != self._source:
            raise InvalidArgumentError(
                f"source must be {quoted(self._source)}, as in earlier messages, got {quoted(message.source)}."
                " Use BySource for many sources"
            )
        return clock

    def _close_complete(self, message: Message, newest: dict[str, int], batches: list[Batch]) -> None:
        newest[message.stream] = max(newest[message.stream], message.event_time)
        # A heap item is updated only at the top of the heap, so a message costs log n of the streams.
        slowest = self._slowest
        while slowest[0][0] < newest[slowest[0][1]]:
            heapreplace(slowest, (newest[slowest[0][1]], slowest[0][1]))
        self._give_out(self._open.take_passed(slowest[0][0]), "complete", batches)

    def _give_out(self, windows: list[Window], reason: CloseReason, batches: list[Batch]) -> None:
        if not windows:
            return
        assert self._source is not None  # noqa: S101  # there are windows, so there was a message
        rule = self._rule
        self._given_out.forget_early(self._floor)
        for window in windows:
            why = reason
            if window.cut_reason is not None and reason != "complete":
                why = window.cut_reason
            elif reason == "timeout" and window.ended_by_gap(rule):
                why = "gap"
            begins_run = bool(rule.boundaries) and window.begins_run(rule)
            run = self._given_out.run_of(window.start, begins_run=begins_run)
            batch, replaced = window.closed(self._source, rule, why, run)
            batches.append(batch)
            self._rejected += replaced
            self._given_out.add(window.start, window.last)
            if reason != "timeout":
                self._given_out.early.update(dict.fromkeys(window.keys(), batch.closed_at))


def _heap(newest: Mapping[str, int] | None) -> list[tuple[int, str]]:
    return sorted((time, stream) for stream, time in (newest or {}).items())
