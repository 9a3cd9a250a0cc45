"""Traffic of streams whose clocks are off, each message with its true time, and where it lands."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.batching.rate.placing.silence import in_calls
from tests.batching.rate.traffic import SECOND, at, frozen, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

Clock = Callable[[float], float]
Arrivals = list[tuple[int, Message]]

POLL = SECOND // 10
TRANSIT = SECOND // 100


def good(_: float) -> float:
    return 0.0


def creeping(drift: float) -> Clock:
    return lambda seconds: drift * seconds


def stepping(step: float, every: float) -> Clock:
    return lambda seconds: step * (seconds // every % 2)


def sent(stream: str, rate: int, seconds: float, clock: Clock, random: Random) -> Arrivals:
    """Make pulses whose sender's clock is off, polled ten times a second. The payload is the true time."""
    arrivals: Arrivals = []
    for pulse in pulses(stream, rate, 0, seconds, phase=random.random() / rate):
        true = pulse.event_time
        received = (true + TRANSIT + random.randrange(TRANSIT) + POLL) // POLL * POLL
        event_time = true + round(clock((true - at(0)) / SECOND) * SECOND)
        arrivals.append((received, Message("s", stream, event_time, true.to_bytes(8), receive_time=received)))
    return arrivals


def traffic(clocks: list[Clock], seconds: float, rates: tuple[int, ...] = (14, 5, 14)) -> list[list[Message]]:
    random = Random(7)  # noqa: S311  # repeatable, nothing secret
    streams = zip("abc", rates, clocks, strict=True)
    arrivals = [pair for name, rate, clock in streams for pair in sent(name, rate, seconds, clock, random)]
    return in_calls(sorted(arrivals, key=lambda pair: pair[0]), POLL)


def run(arrivals: list[list[Message]], **chosen: Any) -> list[Batch]:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    return [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()


def share(batches: list[Batch], rates: tuple[int, ...] = (14, 5, 14)) -> float:
    """Return which percentage of pulses lies in its true window, give or take half a period."""
    own = count = 0
    for batch in batches[1:]:
        for message in batch.messages:
            half = SECOND // (2 * rates["abc".index(message.stream)])
            fastest = int.from_bytes(message.payload) + TRANSIT  # all clocks are aligned to the fastest messages
            own += batch.start - half <= fastest <= batch.end + half
            count += 1
    return 100 * own / count


def timeouts(batches: list[Batch]) -> int:
    return sum(batch.reason == "timeout" for batch in batches)


def received_late(arrivals: list[list[Message]], delay: int) -> list[list[Message]]:
    """Let each call be received at once, a little after the newest of its times that is not wild."""
    clock, result = at(0), []
    for call in arrivals:
        clock = max([clock, *(m.event_time for m in call if abs(m.event_time - clock) < 60 * SECOND)])
        result.append([m.replace(receive_time=clock + delay) for m in call])
    return result
