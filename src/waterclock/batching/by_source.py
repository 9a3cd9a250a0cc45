"""Batches many sources. Each source has a batcher, which is created when the source's first message arrives."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, Rejection, check_batch
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.by_message.lanes import RateLanes
from waterclock.batching.stats import BatcherStats
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.message import Message
from waterclock.time import Duration, Time, to_duration, to_time

_by_closing = attrgetter("closed_at", "source", "start")
_SLACK = 64


class _SourceLane:
    """One source's batcher, and its last known state: ``deadline`` is at or before its next one."""

    __slots__ = ("advanced", "batcher", "deadline")

    def __init__(self, batcher: EventTimeBatcher | IdBatcher) -> None:
        self.batcher = batcher
        self.deadline: int | None = None
        self.advanced: int | None = None


class BySource:
    """Batches the messages of many sources, each by a batcher of its own.

    A message moves only its own source's receive clock; `advance` moves all of them. Every call returns the batches
    that it closed, in order of ``closed_at``, then source, then start.

    A batcher stays until `forget`, because it holds its source's clock. A batcher without open messages takes about 1.4
    KB.

    Parameters
    ----------
    factory
        Creates the batcher of a source, for example ``lambda: EventTimeBatcher("500ms", "400ms")``, ``lambda:
        IdBatcher("pulse_id", max_delay="2s")`` or ``lambda: RateAwareBatcher("1s")``. A rate-aware batcher gets the
        messages of its source in a list with one call. It has no deadline; `advance` makes it check whether its window
        has stalled, and whether to forget its state (``forget_after``).

    Notes
    -----
    The cost of `add`, `advance` and `next_deadline` depends on their input and output, however many sources are idle.
    """

    def __init__(self, factory: Callable[[], EventTimeBatcher | IdBatcher | RateAwareBatcher]) -> None:
        if not callable(factory):
            raise InvalidArgumentError(f"factory must be a function that returns a batcher, got {quoted(factory)}")
        self._factory = factory
        self._lanes: dict[str, _SourceLane] = {}
        self._by_rate = RateLanes()
        self._deadlines: list[tuple[int, str]] = []  # a heap; an item is valid only while it equals its lane's deadline
        self._now: int | None = None
        # Sources that may have rejections, so that only those are asked.
        self._touched: dict[str, _SourceLane] = {}
        self._closed: list[Batch] = []

    def add(self, messages: Message | list[Message], now: Time | None = None) -> list[Batch]:
        """Take in a message, or a list of messages that arrived together, in order of arrival.

        Parameters
        ----------
        messages
            Messages of any sources.
        now
            The receive clock, ns. Default: each message's own ``receive_time``.

        Raises
        ------
        InvalidArgumentError
            For a message that its batcher does not accept. Messages before it in the list were added; the invalid
            message and those after it were not. The next call returns the batches that have closed. If the batchers
            batch by rate, no message was added.
        """
        clock = None if now is None else to_time(now, "now")
        together: dict[str, list[Message]] = {}
        met: dict[str, RateAwareBatcher] = {}
        for message in messages if isinstance(messages, list) else [messages]:
            self._add(message, clock, together, met)
        for source, arrived in self._by_rate.check(together, met).items():
            self._closed += self._by_rate.take(source, arrived)
        return self._take_closed()

    def advance(self, now: Time) -> list[Batch]:
        """Move every source's receive clock: a promise that nothing received at or before ``now`` comes later."""
        clock = to_time(now, "now")
        self._now = clock if self._now is None else max(self._now, clock)
        while (earliest := self._earliest()) is not None and earliest <= self._now:
            deadline = self.next_deadline
            if deadline is None or deadline > self._now:
                continue
            source = self._deadlines[0][1]
            lane = self._lanes[source]
            self._closed += lane.batcher.advance(self._now)
            lane.advanced = self._now
            self._note_touched(source, lane)
        self._closed += self._by_rate.look() + self._by_rate.advance(self._now)
        return self._take_closed()

    def flush(self) -> list[Batch]:
        """Close every open window of every source, and return the batches."""
        for source, lane in self._lanes.items():
            if lane.deadline is not None:
                self._closed += lane.batcher.flush()
                self._note_touched(source, lane)
        self._closed += self._by_rate.flush()
        return self._take_closed()

    def reset(self, source: str | None = None) -> list[Batch]:
        """Reset the clock of a source, for example after one message with a wrong clock far ahead.

        Its open messages are returned, and the next message sets the clock again, but not to before the last `advance`;
        see ``EventTimeBatcher.reset`` and ``RateAwareBatcher.reset``.

        Parameters
        ----------
        source
            The source. Default: all of them; the promise of `advance` is then forgotten, too.

        Raises
        ------
        NotFoundError
            If no message of this source has come.
        InvalidArgumentError
            If the name is not a text.
        """
        if source is not None and not isinstance(source, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
            raise InvalidArgumentError(f"source must be a string, got {quoted(source)}")
        if source is None:
            self._now = None
            for name, lane in self._lanes.items():
                self._closed += lane.batcher.reset()
                lane.advanced = None
                self._note_touched(name, lane)
            self._closed += self._by_rate.reset()
        elif (lane := self._lanes.get(source)) is not None:
            self._closed += lane.batcher.reset()
            lane.advanced = None
            self._note_touched(source, lane)
        elif source in self._by_rate:
            self._closed += self._by_rate.reset(source)
        else:
            raise NotFoundError(f"no source named {quoted(source)}; this batcher has received no messages from it")
        return self._take_closed()

    def processed(self, took: Duration, batch: Batch) -> int | None:
        """Report how long a batch took to process; see ``RateAwareBatcher.processed``.

        Returns
        -------
        int or None
            The length of its source's batches from the next window on, ns; None if the source was forgotten.

        Raises
        ------
        InvalidArgumentError
            If the source is not batched by rate, or the length is not adaptive.
        """
        check_batch(batch)
        if batch.source in self._lanes:
            raise InvalidArgumentError(
                f"batch must come from batching by rate, got {quoted(batch.id)}: only batches by rate have an"
                " adaptive length"
            )
        batcher = self._by_rate.batchers.get(batch.source)
        return None if batcher is None else batcher.processed(took, batch)

    def forget(self, idle: Duration = "1h", now: Time | None = None) -> int:
        """Forget sources that have long been silent and have no open messages.

        Memory is then proportional to active sources.

        By event time, a source counts as silent by the receive clock: its own clock is at least ``idle`` before
        ``now``, no message that it has returned could be accepted again, and no run has begun. While `advance` is
        called, this changes no batch: the promise of `advance` decides whether later messages of a forgotten source are
        late. If `advance` is not called, a message received at least ``idle`` ago counts as the first of its source,
        and a batch may get the identity of an earlier one.

        By id, the ids of a forgotten source are forgotten too.

        By rate, a source counts as silent by its batcher's clock. Its later messages begin again: its first call is a
        batch, and its streams' rates are learned again. A batch may have the identity of an earlier one if event times
        that were batched come again. A replay does not repeat this, but it does follow the batcher's ``forget_after``.
        A source with untaken rejections is kept.

        Parameters
        ----------
        idle
            Minimum silence.
        now
            The receive clock, ns. Default: the time of the last `advance`, or else the latest clock of any source.

        Returns
        -------
        int
            How many sources were forgotten.
        """
        silence = to_duration(idle, "idle")
        clock = self._now if now is None else to_time(now, "now")
        if clock is None:
            clock = max((lane.batcher.receive_clock for lane in self._lanes.values()), default=0)
        since = clock - silence
        promised = since if self._now is None else self._now + 1
        gone = [source for source, lane in self._lanes.items() if lane.batcher.is_done(since, promised)]
        for source in gone:
            del self._lanes[source]
            self._touched.pop(source, None)
        if gone:
            self._drop_outdated()
        return len(gone) + self._by_rate.forget(silence)

    def stats(self) -> dict[str, BatcherStats]:
        """Return the state of each source's clock, and how far it is ahead of its messages."""
        batchers = {source: lane.batcher for source, lane in self._lanes.items()} | self._by_rate.batchers
        return {source: batcher.stats() for source, batcher in batchers.items()}

    @property
    def next_deadline(self) -> int | None:
        """The earliest ``now`` for which `advance` closes a window of any source, ns; None if nothing is open."""
        while (earliest := self._earliest()) is not None:
            source = self._deadlines[0][1]
            lane = self._lanes[source]
            deadline = lane.batcher.next_deadline
            if deadline == earliest:
                return deadline
            self._watch(source, lane, deadline)
        return None

    def _earliest(self) -> int | None:
        """Find a time, ns, before which no window of any source closes; None if nothing is open."""
        while self._deadlines:
            deadline, source = self._deadlines[0]
            lane = self._lanes.get(source)
            if lane is not None and lane.deadline == deadline:
                return deadline
            heappop(self._deadlines)
        return None

    def take_rejected(self) -> list[Rejection]:
        """Return the messages rejected since the last call, source by source, each source's in order of rejection."""
        touched, self._touched = self._touched, {}
        return [rejection for lane in touched.values() for rejection in lane.batcher.take_rejected()]

    def _add(
        self,
        message: Message,
        now: int | None,
        together: dict[str, list[Message]],
        met: dict[str, RateAwareBatcher],
    ) -> None:
        try:
            source = message.source
        except AttributeError:
            raise InvalidArgumentError(
                f"messages must be a waterclock.Message or a list of them, got {quoted(message)}"
            ) from None
        lane = self._lanes.get(source) or self._meet(source, met)
        if lane is None:
            together.setdefault(source, []).append(message)
            return
        if lane.advanced != self._now and self._now is not None:
            # `advance` has closed all that was due. Only this source's own clock lags behind.
            self._closed += lane.batcher.advance(self._now)
            lane.advanced = self._now
        self._closed += lane.batcher.add(message, now)
        self._lanes[source] = lane  # a source exists once a message of it was added
        self._note_touched(source, lane)

    def _meet(self, source: str, met: dict[str, RateAwareBatcher]) -> _SourceLane | None:
        """Create the batcher of a new source; None if it batches by rate: it is registered once the list is checked."""
        if source in self._by_rate or source in met:
            return None
        batcher = self._factory()
        if isinstance(batcher, RateAwareBatcher):
            met[source] = batcher
            return None
        if not isinstance(batcher, EventTimeBatcher | IdBatcher):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"factory must return a batcher, got {quoted(batcher)}")
        return _SourceLane(batcher)

    def _note_touched(self, source: str, lane: _SourceLane) -> None:
        self._watch(source, lane, lane.batcher.sleeps_until)
        self._touched[source] = lane

    def _watch(self, source: str, lane: _SourceLane, deadline: int | None) -> None:
        if deadline != lane.deadline:
            lane.deadline = deadline
            if deadline is not None:
                heappush(self._deadlines, (deadline, source))
            if len(self._deadlines) > 2 * len(self._lanes) + _SLACK:
                self._drop_outdated()

    def _drop_outdated(self) -> None:
        # Without this, a user who never calls `advance` would collect an item for every past window.
        lanes = self._lanes.items()
        self._deadlines = [(lane.deadline, source) for source, lane in lanes if lane.deadline is not None]
        heapify(self._deadlines)

    def _take_closed(self) -> list[Batch]:
        if not self._closed:
            return []
        closed, self._closed = self._closed, []
        return sorted(closed, key=_by_closing)
