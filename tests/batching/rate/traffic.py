"""Messages for the tests of batching by rate."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
YEAR = 365 * 86_400 * SECOND


def at(seconds: float) -> int:
    """Turn seconds into an event time."""
    return T0 + round(seconds * SECOND)


def message(stream: str, event_time: int, payload: bytes = b"") -> Message:
    return Message("s", stream, event_time, payload)


def pulses(stream: str, rate: int, start: float, stop: float, phase: float = 0.0) -> list[Message]:
    """Make the pulses of ``rate`` Hz from ``start`` up to before ``stop``, s."""
    first, last = round(start * rate), round(stop * rate)
    return [message(stream, at(phase) + k * SECOND // rate) for k in range(first, last)]


def by_time(*streams: list[Message]) -> list[Message]:
    return sorted((m for stream in streams for m in stream), key=lambda m: m.event_time)


def frozen() -> float:
    return 0.0


def feed(batcher: RateAwareBatcher, messages: list[Message], size: int = 1) -> list[Batch]:
    batches: list[Batch] = []
    for k in range(0, len(messages), size):
        batches += batcher.add(messages[k : k + size])
    return batches


@st.composite
def _stream(draw: st.DrawFn, name: str) -> list[tuple[int, Message]]:
    rate = draw(st.sampled_from([1, 2, 2.5, 3, 3.4, 5, 7, 14, 25]) | st.just(0))
    begin = draw(st.integers(0, 8))
    span = draw(st.integers(1, 10))
    phase = draw(st.integers(0, SECOND))
    jitter = draw(st.sampled_from([0, 1_000, 30_000_000, 200_000_000]))
    lag = draw(st.sampled_from([0, 0, 0, SECOND // 2, 5 * SECOND]))
    random = draw(st.randoms(use_true_random=False))
    period = int(SECOND / rate) if rate else 2 * SECOND
    arrivals: list[tuple[int, Message]] = []
    for k in range(span * SECOND // period):
        due = T0 + begin * SECOND + phase + k * period
        if random.random() < 0.1:
            continue
        for _ in range(2 if random.random() < 0.05 else 1):
            event_time = due + random.randint(-jitter, jitter)
            if random.random() < 0.01:
                event_time += random.choice([YEAR, -YEAR, 20 * SECOND, -20 * SECOND, 500 * SECOND, 4 * SECOND])
            arrivals.append((due + lag + random.randint(0, jitter), message(name, event_time)))
    return arrivals


@st.composite
def calls(draw: st.DrawFn, largest: int = 40) -> list[list[Message]]:
    """Draw what a source's calls bring: streams of any rate that join and stop, jitter, loss, splits, wild times."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "log", "late"]), min_size=1, max_size=4, unique=True))
    arrivals = sorted((pair for name in names for pair in draw(_stream(name))), key=lambda pair: pair[0])
    messages = [Message("s", m.stream, m.event_time, number.to_bytes(4)) for number, (_, m) in enumerate(arrivals)]
    random = draw(st.randoms(use_true_random=False))
    most = draw(st.sampled_from([1, 5, largest, 1000]))
    result: list[list[Message]] = []
    while messages:
        size = random.randint(1, most)
        result.append(messages[:size])
        messages = messages[size:]
    return result


options = st.fixed_dictionaries(
    {
        "batch_length": st.sampled_from(["1s", "500ms", "2s", "300ms", SECOND - 1]),
        "timeout": st.sampled_from([None, None, "auto", "auto", 100_000_000, 900_000_000, float("inf")]),
        "gated": st.sampled_from([True, True, False, ("a", "b"), ("a", "b", "c", "late")]),
        "max_disorder": st.sampled_from([0, 0, 0, 100_000_000, 900_000_000]),
        "boundaries": st.sampled_from([None, None, ("late",), ("log", "c")]),
    }
)


def uneven(seed: int) -> list[list[Message]]:
    """Return calls of three streams with missing pulses, pauses and late messages, 40 s long."""
    draw = random.Random(seed)  # noqa: S311  # data for a test
    arrived: list[tuple[int, Message]] = []
    for stream in "abc":
        rate, first, last = draw.choice([1, 1.3, 2.5, 3, 5, 14]), draw.choice([0, 0, 10]), draw.choice([15, 40, 40])
        pauses = [(begin, begin + draw.randrange(1, 9)) for begin in (draw.randrange(40), draw.randrange(40))]
        for number in range(int(first * rate), int(last * rate)):
            second = number / rate
            if draw.random() >= 0.1 and not any(begin <= second < end for begin, end in pauses):
                received = second + draw.choice([0, 0, draw.random() * 2])
                arrived.append((round(received * SECOND), message(stream, T0 + round(second * SECOND))))
    arrived.sort(key=lambda pair: pair[0])
    return [[each for _, each in arrived[at : at + 3]] for at in range(0, len(arrived), 3)]
