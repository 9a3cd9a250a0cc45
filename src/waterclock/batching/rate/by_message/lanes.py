"""Batches the sources of a `BySource` by rate. As time passes, checks only sources whose window may have stalled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

_SECOND = 1_000_000_000


class _StallHeap:
    """The batchers that share a clock: when each of them may stall, in a heap, and the clock's last reading."""

    __slots__ = ("clock", "due", "seen")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.due: list[tuple[float, str]] = []  # kept as a heap
        self.seen = clock()


class RateLanes:
    """A rate-aware batcher for each source, and when it may stall.

    A source with buffered messages is in the heap of its clock, with a time no later than the stall of its window. If a
    window closes in between, the stall moves to a later time, which is found when the old time is examined. A source
    that is forgotten after a silence is in another heap in the same way.
    """

    def __init__(self) -> None:
        self.batchers: dict[str, RateAwareBatcher] = {}  # by source
        self._watches: dict[object, _StallHeap] = {}  # by clock, or by its id if it is not hashable
        self._watched: set[str] = set()
        self._silences: list[tuple[int, str]] = []  # kept as a heap
        self._heard: set[str] = set()  # the sources in it

    def __contains__(self, source: object) -> bool:
        return source in self.batchers

    def check(self, together: dict[str, list[Message]], met: dict[str, RateAwareBatcher]) -> dict[str, list[Message]]:
        """Check messages that arrived together, by source, and then add the batchers of new sources.

        If a batcher or a user's function raises, nothing changes.
        """
        batchers = self.batchers
        checked = {
            source: (met[source] if source in met else batchers[source]).check(messages)
            for source, messages in together.items()
        }
        batchers |= met
        return checked

    def take(self, source: str, messages: list[Message]) -> list[Batch]:
        """Pass to a source's batcher the messages that `check` has returned."""
        batcher = self.batchers[source]
        closed = batcher.take(messages)
        if source not in self._watched:
            self._watch(source, batcher)
        if source not in self._heard:
            self._hear(source, batcher)
        return closed

    def advance(self, now: int) -> list[Batch]:
        """Forget sources that have been silent for too long: no message received by ``now`` comes later.

        A source that comes back gets a new batcher, like a new source.
        """
        closed: list[Batch] = []
        while self._silences and self._silences[0][0] <= now:
            source = heappop(self._silences)[1]
            self._heard.discard(source)
            batcher = self.batchers.get(source)
            if batcher is None:
                continue
            if batcher.forgotten_at is not None and batcher.forgotten_at <= now:
                closed += batcher.advance(now)
                del self.batchers[source]
                self._watched.discard(source)
            else:
                self._hear(source, batcher)
        return closed

    def look(self) -> list[Batch]:
        """Advance the batchers whose window may have stalled by the clock."""
        closed: list[Batch] = []
        for key, watch in list(self._watches.items()):
            now = watch.clock()
            if now < watch.seen:
                # A clock that jumps back restarts every count, so each time in the heap may be too late.
                looked = [source for _, source in watch.due]
                watch.due = []
            else:
                looked = []
                while watch.due and watch.due[0][0] <= now:
                    looked.append(heappop(watch.due)[1])
            watch.seen = now
            for source in looked:
                self._watched.discard(source)
                if source in self.batchers:
                    closed += self.take(source, [])
            if not watch.due:
                del self._watches[key]
        return closed

    def flush(self) -> list[Batch]:
        """Close every batch of every source, and return them."""
        return [batch for batcher in self.batchers.values() for batch in batcher.flush()]

    def reset(self, source: str | None = None) -> list[Batch]:
        names = list(self.batchers) if source is None else [source]
        return [batch for name in names for batch in self.batchers[name].reset()]

    def forget(self, silence: int) -> int:
        """Forget sources without open messages that have been silent for that long, ns; return how many."""
        gone = [
            source
            for source, batcher in self.batchers.items()
            if not batcher.buffered and batcher.silent_for * _SECOND >= silence
        ]
        for source in gone:
            del self.batchers[source]
            self._watched.discard(source)
        return len(gone)

    def _hear(self, source: str, batcher: RateAwareBatcher) -> None:
        if batcher.forgotten_at is not None:
            heappush(self._silences, (batcher.forgotten_at, source))
            self._heard.add(source)

    def _watch(self, source: str, batcher: RateAwareBatcher) -> None:
        stalls_at = batcher.stalls_at
        if stalls_at is None:
            return
        key = batcher.clock if isinstance(batcher.clock, Hashable) else id(batcher.clock)  # pyright: ignore[reportUnnecessaryIsInstance]  # a dataclass with __call__ is not
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _StallHeap(batcher.clock)
        heappush(watch.due, (stalls_at, source))
        self._watched.add(source)
