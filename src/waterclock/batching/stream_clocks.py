"""Estimates how each stream's clock differs from the receive clock, and how late and disordered its messages are."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from operator import attrgetter, itemgetter, sub
from typing import NamedTuple

from waterclock.batching.batch import Batch
from waterclock.message import Message
from waterclock.time import MIN_NS

KEPT = 30_000_000_000
"""The estimates rest on the batches received within this time (ns): short enough to show a change within a minute, long
enough for a stream that sends once a second."""

LOOKED_AT_EVERY = 5_000_000_000
"""A batch is examined if it starts this long after the last examined one, ns: examining all would cost a tenth of the
speed of batching.
"""

LEAST_KEPT, MOST_KEPT = 4, 16
"""Maximum number of batches kept, whatever their length."""

MOST_STREAMS = 1_000
"""Maximum number of streams followed: senders choose the names of streams, and memory is bounded."""

SAMPLED = 32
"""If a stream has more messages in a batch, only every second, third … counts: all would cost half as much as batching.
"""

_event_time, _receive_time = attrgetter("event_time"), attrgetter("receive_time")
_LOW = 10  # the low quantile is the 10 % quantile


class StreamClock(NamedTuple):
    """The clock of a stream, from the examined batches of the last 30 s, one every 5 s."""

    offset: int
    """The receive time minus the event time, ns, of the tenth of messages that were quickest: the difference of the
    clocks plus the shortest transit time. Delays do not count. Negative if the stream's clock is ahead by more.
    """
    drift: float  # How much the offset grows in a second, s. 0.01 if the stream's clock falls behind by 10 ms a second.
    lag: int
    """How much longer than that the slowest message of the last such batch took, ns; if a batch has more than 32 of the
    stream, about that many are examined.
    """
    disorder: int  # the farthest that a message was behind one of the stream received before it, ns


class _Sample(NamedTuple):
    received: int
    low: int
    high: int
    disorder: int


class StreamClocks:
    """Follows the clocks of a source's streams through its batches. It changes no batch, and is not part of a state.

    Streams without receive times do not count.
    """

    __slots__ = ("_next_from", "_samples")

    def __init__(self) -> None:
        self._samples: dict[str, deque[_Sample]] = {}
        self._next_from = MIN_NS

    def note(self, batch: Batch) -> None:
        """Add a closed batch."""
        if self._next_from - LOOKED_AT_EVERY < batch.start < self._next_from:
            return
        self._next_from = batch.start + LOOKED_AT_EVERY
        for stream, sample in _samples(batch).items():
            samples = self._samples.get(stream)
            if samples is None:
                if len(self._samples) == MOST_STREAMS:
                    continue
                samples = self._samples[stream] = deque(maxlen=MOST_KEPT)
            samples.append(sample)
            while len(samples) > LEAST_KEPT and samples[-1].received - samples[0].received > KEPT:
                samples.popleft()

    def estimates(self) -> dict[str, StreamClock]:
        """Estimate the clock of each stream."""
        return {stream: _estimate(list(samples)) for stream, samples in sorted(self._samples.items())}


def offsets(batches: Iterable[Batch]) -> dict[str, list[tuple[int, int]]]:
    """Return, for each stream of some batches, when each batch was received and its offset then, ns."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for batch in batches:
        for stream, sample in _samples(batch).items():
            lines.setdefault(stream, []).append((sample.received, sample.low))
    return {stream: sorted(line) for stream, line in sorted(lines.items())}


def _samples(batch: Batch) -> dict[str, _Sample]:
    """Summarise the messages of each stream."""
    streams: defaultdict[str, list[Message]] = defaultdict(list)
    for message in batch.messages:
        streams[message.stream].append(message)
    samples: dict[str, _Sample] = {}
    for stream, messages in streams.items():
        sample = _sample(messages if len(messages) <= SAMPLED else messages[:: len(messages) // SAMPLED + 1])
        if sample is not None:
            samples[stream] = sample
    return samples


def _sample(messages: list[Message]) -> _Sample | None:
    """Summarise messages of a stream in order of event time; None if they lack receive times."""
    received, times = list(map(_receive_time, messages)), list(map(_event_time, messages))
    if None in received:
        return None
    delays = sorted(map(sub, received, times))
    in_order, disorder = sorted(received), 0
    if received != in_order:
        newest = times[0]
        for _, event_time in sorted(zip(received, times, strict=True), key=itemgetter(0)):
            newest = max(newest, event_time)
            disorder = max(disorder, newest - event_time)
    return _Sample(in_order[-1], delays[len(delays) // _LOW], delays[-1], disorder)


def _estimate(samples: list[_Sample]) -> StreamClock:
    lows = sorted(sample.low for sample in samples)
    offset = lows[len(lows) // _LOW]
    middle = len(samples) // 2
    drift = 0.0
    elapsed = samples[-middle].received - samples[0].received if middle else 0
    if len(samples) >= LEAST_KEPT and elapsed > 0:
        earlier, later = (min(sample.low for sample in half) for half in (samples[:middle], samples[-middle:]))
        drift = (later - earlier) / elapsed
    return StreamClock(offset, drift, max(0, samples[-1].high - offset), max(sample.disorder for sample in samples))
