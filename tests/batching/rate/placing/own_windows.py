"""Traffic that is late, out of order or of clocks that disagree, and the share of it in its own windows."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.batching.rate.placing.silence import arriving, in_calls, on_time
from tests.batching.rate.traffic import SECOND, at, frozen, message, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

Arrivals = list[tuple[int, Message]]

DETECTOR, MONITOR = pulses("det", 14, 0, 120), pulses("mon", 14, 0, 120, phase=0.01)


def delayed(seconds: float) -> Arrivals:
    """Make a stream that arrives so much later than the other, forever."""
    return [*on_time(DETECTOR), *((m.event_time + round(seconds * SECOND), m) for m in MONITOR)]


def creeping(drift: float) -> Arrivals:
    """Make a stream whose clock gains so much (s/s) for ten minutes."""
    monitor = pulses("mon", 14, 0, 600, phase=0.01)
    shifted = [(m.event_time, message("mon", m.event_time + round(drift * (m.event_time - at(0))))) for m in monitor]
    return [*on_time(pulses("det", 14, 0, 600)), *shifted]


def sparse_log(interval: int) -> Arrivals:
    """Make a detector that is off for ten minutes, and a log that writes every so many seconds."""
    log = [message("log", at(seconds + 0.5)) for seconds in range(0, 700, interval)]
    return on_time([*pulses("det", 14, 0, 60), *pulses("det", 14, 660, 700), *log])


def off(step: float, drift: float = 0.0) -> Arrivals:
    """Make a stream whose clock steps (s) after 20 s, or drifts (s/s) from then on."""
    shifted: Arrivals = []
    for m in MONITOR:
        since = m.event_time - at(20)
        offset = round(step * SECOND + drift * since) if since >= 0 else 0
        shifted.append((m.event_time, message("mon", m.event_time + offset)))
    return [*on_time(DETECTOR), *shifted]


def disordered(seconds: float) -> Arrivals:
    """Make streams whose messages each arrive up to so much later, in any order."""
    random = Random(1)  # noqa: S311
    return [(m.event_time + random.randrange(round(seconds * SECOND)), m) for m in [*DETECTOR, *MONITOR]]


def silent(hours: int) -> Arrivals:
    """Make streams that are silent for so long after 20 s, and then send for 30 s."""
    parts = [(0, 20), (20 + 3600 * hours, 50 + 3600 * hours)]
    return [
        a
        for part in parts
        for name, phase in (("det", 0), ("mon", 0.01))
        for a in on_time(pulses(name, 14, *part, phase))
    ]


def share(arrivals: Arrivals, **options: Any) -> float:
    """Return which percentage of the messages after the first batch lie in their own window."""
    batcher = RateAwareBatcher(**options, clock=frozen)
    batches: list[Batch] = []
    received = [(at, Message("s", m.stream, m.event_time, receive_time=at)) for at, m in arriving(arrivals)]
    for call in in_calls(received, SECOND // 10):
        batches += batcher.add(call)
    batches = [batch for batch in [*batches, *batcher.flush()] if batch.reason != "start"]
    count = sum(len(batch.messages) for batch in batches)
    return 100 - 100 * sum(counts.total for batch in batches for counts in batch.outside.values()) / count
