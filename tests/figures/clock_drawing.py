"""Draws the clocks of four streams for the documentation: ``python -m tests.figures.clock_drawing``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.batching.rate.traffic import SECOND, T0, frozen

from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.figures.clock_offsets import clock_offsets
from waterclock.message import Message

DRAWING = Path(__file__).parents[2] / "docs" / "images" / "clock-offsets.svg"
_MS = SECOND // 1000


def clock_drawing() -> str:
    """Draw two minutes of a good clock, a clock that falls behind, a clock that is set, and a stream with delays."""
    chance = random.Random(3)  # noqa: S311  # repeatable, nothing secret
    streams: dict[str, tuple[Callable[[float], int], Callable[[], int]]] = {
        "delayed": (lambda _: 0, lambda: chance.choice([0, 0, 100, 400]) * _MS),
        "drifts": (lambda now: round(5 * now) * _MS, lambda: 0),
        "good": (lambda _: 0, lambda: 0),
        "set": (lambda now: 0 if now < 70 else 300 * _MS, lambda: 0),
    }
    arrivals: list[tuple[int, Message]] = []
    for name, (behind, delay) in streams.items():
        for k in range(120 * 5):
            now = T0 + k * SECOND // 5
            received = now + 20 * _MS + delay()
            arrivals.append((received, Message("beamline", name, now - behind(k / 5), receive_time=received)))
    batcher = RateAwareBatcher(timeout="3s", clock=frozen)
    batches = [
        batch for _, message in sorted(arrivals, key=lambda a: (a[0], a[1].stream)) for batch in batcher.add([message])
    ]
    return clock_offsets(batches, width=880)


if __name__ == "__main__":
    DRAWING.write_text(clock_drawing(), "utf-8")
