"""Reads a scenario of batching by rate: what arrives in bursts, and the batches that are expected.

Times are seconds from an arbitrary zero; a message arrives at its event time unless its burst says otherwise.
"""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.batching.rate.traffic import SECOND, at, message

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

FOLDER = Path(__file__).parents[2] / "scenarios" / "rate"


@dataclass(frozen=True)
class Scenario:
    """One drawing of *RateAwareMessageBatcher*, as data.

    A burst holds ``stream`` and either ``times`` or ``rate`` with the pulse numbers ``first`` to ``last``; and, as it
    needs them, ``phase`` (s), ``missing`` (pulse numbers never sent), ``split`` (sent twice), ``jitter`` (s, used in
    turn), ``shift`` (s, added to its event times only), ``delay`` (s, so much later it arrives), and ``together``: when
    all of it arrives in one call, which it shares with what else arrives together then.
    """

    title: str
    document: str
    bursts: list[dict[str, Any]]
    batches: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    set_batch_length: dict[str, str] = field(default_factory=dict)
    wall_clock: bool = False
    looks: list[float] = field(default_factory=list)
    flush: bool = False
    waiting: int = 0
    gating: list[str] | None = None

    @classmethod
    def read(cls, path: Path) -> Scenario:
        return cls(**tomllib.loads(path.read_text("utf-8")))

    @property
    def is_received(self) -> bool:
        """Whether its messages have receive times, which only some options need."""
        return self.options.get("clocks") == "align"

    def calls(self) -> Iterator[tuple[float, list[Message]]]:
        """Yield what arrives together, and when, s."""
        arrivals = sorted((a for burst in self.bursts for a in _arrivals(burst)), key=itemgetter(0))
        arrivals += [(look, _TOGETHER, None) for look in self.looks]
        arrivals.sort(key=itemgetter(0))
        for (arrival, _), group in groupby(arrivals, itemgetter(0, 1)):
            messages = [m for _, _, m in group if m is not None]
            yield arrival, [m.replace(receive_time=at(arrival)) for m in messages] if self.is_received else messages

    def run(self, *, restoring: bool = False) -> tuple[RateAwareBatcher, list[Batch]]:
        """Give what arrives to a batcher, ``restoring`` it from its own state before each call."""
        now = 0.0

        def clock() -> float:
            return now if self.wall_clock else 0.0

        batcher = RateAwareBatcher(**self.options, clock=clock)
        batches: list[Batch] = []
        lengths = dict(self.set_batch_length)
        for arrival, messages in self.calls():
            if restoring:
                batcher = RateAwareBatcher.restore(batcher.state(), clock=clock)
            now = arrival
            for due in [key for key in lengths if float(key) <= arrival]:
                batcher.set_batch_length(lengths.pop(due))
            batches += batcher.add(messages)
        return batcher, batches + (batcher.flush() if self.flush else [])


def found(batch: Batch) -> dict[str, Any]:
    """Describe a batch as a scenario does."""
    counts = Counter(m.stream for m in batch.messages)
    return {
        "start": (batch.start - at(0)) / SECOND,
        "end": (batch.end - at(0)) / SECOND,
        "reason": batch.reason,
        "messages": dict(sorted(counts.items())),
        **({} if batch.run is None else {"run": (batch.run - at(0)) / SECOND}),
    }


_TOGETHER = -1
_numbers = itertools.count()


def _arrivals(burst: dict[str, Any]) -> Iterator[tuple[float, int, Message]]:
    together = burst.get("together")
    for number, due in _due(burst):
        shift = burst.get("shift", 0)
        jitters = burst.get("jitter", [0])
        event_time = at(0) + due + at(shift + jitters[number % len(jitters)]) - at(0)
        arrival = (event_time - at(shift)) / SECOND + burst.get("delay", 0) if together is None else together
        for _ in range(2 if number in burst.get("split", []) else 1):
            yield arrival, next(_numbers) if together is None else _TOGETHER, message(burst["stream"], event_time)


def _due(burst: dict[str, Any]) -> Iterator[tuple[int, int]]:
    if "times" in burst:
        yield from ((number, at(time) - at(0)) for number, time in enumerate(burst["times"]))
        return
    phase = at(burst.get("phase", 0)) - at(0)
    for number in range(burst["first"], burst["last"] + 1):
        if number not in burst.get("missing", []):
            yield number, phase + number * SECOND // burst["rate"]
