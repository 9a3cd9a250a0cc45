"""Many sources at once: one batcher for each, made when its first message comes."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.event_time import EventTimeBatcher
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.quoting import quoted
from waterclock.time import Time, to_time

_by_closing = attrgetter("closed_at", "source", "start")
_SLACK = 64


class _Lane:
    """One source's batcher, and what `BySource` last knew of it."""

    __slots__ = ("advanced", "batcher", "deadline")

    def __init__(self, batcher: EventTimeBatcher) -> None:
        self.batcher = batcher
        self.deadline: int | None = None
        self.advanced: int | None = None


class BySource:
    """Batches the messages of many sources, each by a batcher of its own.

    A message moves its own source's receive clock only; `advance` moves all of them. Every call returns the batches
    that it closed, in order of ``closed_at``, then source, then start.

    A batcher stays for as long as the object does, because it remembers how far its source's clock has come. One with
    nothing open takes about 600 bytes.

    Parameters
    ----------
    factory
        Makes the batcher of a source, for example ``lambda: EventTimeBatcher("500ms", "400ms")`` or
        ``lambda: RateAwareBatcher("1s")``. A rate-aware batcher gets those messages of a list that are its source's in
        one call; it has no deadline, and `advance` has it look whether its window has stalled.
    """

    def __init__(self, factory: Callable[[], EventTimeBatcher | RateAwareBatcher]) -> None:
        if not callable(factory):
            raise InvalidArgumentError(
                f"factory: {quoted(factory)} is a {type(factory).__name__}; give a function that makes a batcher"
            )
        self._factory = factory
        self._lanes: dict[str, _Lane] = {}
        self._by_rate: dict[str, RateAwareBatcher] = {}
        self._deadlines: list[tuple[int, str]] = []  # a heap; an entry counts only while its lane says the same
        self._now: int | None = None
        self._touched: dict[str, _Lane] = {}  # where rejections may wait, so that taking them asks no other source
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
            For a message that its batcher does not take. Those before it in the list are in, it and those after it
            are not, and the next call returns the batches that have closed. Where the batchers go by rate, none of
            them is in.
        """
        clock = None if now is None else to_time(now, "now")
        together: dict[str, list[Message]] = {}
        for message in messages if isinstance(messages, list) else [messages]:
            self._add(message, clock, together)
        # What one of them refuses, or a function of the user's raises, changes none.
        checked = {source: self._by_rate[source].check(arrived) for source, arrived in together.items()}
        for source, arrived in checked.items():
            self._closed += self._by_rate[source].take(arrived)
        return self._take_closed()

    def advance(self, now: Time) -> list[Batch]:
        """Move every source's receive clock: a promise that nothing received at or before ``now`` comes later."""
        clock = to_time(now, "now")
        self._now = clock if self._now is None else max(self._now, clock)
        while (deadline := self.next_deadline) is not None and deadline <= self._now:
            source = self._deadlines[0][1]
            lane = self._lanes[source]
            self._closed += lane.batcher.advance(self._now)
            lane.advanced = self._now
            self._settle(source, lane)
        for batcher in self._by_rate.values():
            self._closed += batcher.add([])
        return self._take_closed()

    def flush(self) -> list[Batch]:
        """Give out every open window of every source at once."""
        for source, lane in self._lanes.items():
            if lane.deadline is not None:
                self._closed += lane.batcher.flush()
                self._settle(source, lane)
        for batcher in self._by_rate.values():
            self._closed += batcher.flush()
        return self._take_closed()

    @property
    def next_deadline(self) -> int | None:
        """The earliest ``now`` for which `advance` closes a window of any source, ns; None where nothing is open."""
        while self._deadlines:
            deadline, source = self._deadlines[0]
            if self._lanes[source].deadline == deadline:
                return deadline
            heappop(self._deadlines)
        return None

    def take_rejected(self) -> list[Rejection]:
        """Return the messages rejected since the last call, source by source, each source's in order of rejection."""
        touched, self._touched = self._touched, {}
        return [rejection for lane in touched.values() for rejection in lane.batcher.take_rejected()]

    def _add(self, message: Message, now: int | None, together: dict[str, list[Message]]) -> None:
        try:
            source = message.source
        except AttributeError:
            raise InvalidArgumentError(
                f"messages: {quoted(message)} is a {type(message).__name__}; give a waterclock.Message or a list of"
                " them"
            ) from None
        lane = self._lanes.get(source) or self._meet(source)
        if lane is None:
            together.setdefault(source, []).append(message)
            return
        if lane.advanced != self._now and self._now is not None:
            # Nothing is due here: `advance` has closed it. Only this source's clock lags behind.
            self._closed += lane.batcher.advance(self._now)
            lane.advanced = self._now
        self._closed += lane.batcher.add(message, now)
        self._settle(source, lane)

    def _meet(self, source: str) -> _Lane | None:
        """Make the batcher of a new source; None where it batches by rate."""
        if source in self._by_rate:
            return None
        batcher = self._factory()
        if isinstance(batcher, RateAwareBatcher):
            self._by_rate[source] = batcher
            return None
        lane = self._lanes[source] = _Lane(batcher)
        return lane

    def _settle(self, source: str, lane: _Lane) -> None:
        deadline = lane.batcher.next_deadline
        if deadline != lane.deadline:
            lane.deadline = deadline
            if deadline is not None:
                heappush(self._deadlines, (deadline, source))
            if len(self._deadlines) > 2 * len(self._lanes) + _SLACK:
                self._drop_outdated()
        self._touched[source] = lane

    def _drop_outdated(self) -> None:
        # Without this, a user who never advances would collect an entry for every window that there ever was.
        lanes = self._lanes.items()
        self._deadlines = [(lane.deadline, source) for source, lane in lanes if lane.deadline is not None]
        heapify(self._deadlines)

    def _take_closed(self) -> list[Batch]:
        if not self._closed:
            return []
        closed, self._closed = self._closed, []
        return sorted(closed, key=_by_closing)
