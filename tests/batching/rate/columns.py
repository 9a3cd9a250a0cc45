"""Rate-aware columns and the class, fed and described alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.batching.rate.traffic import frozen

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateBatches
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

Described = tuple[int, int, int, str, list[int], int | None]
"""Start, end, closing time, reason, numbers of messages and run of a batch."""


def described(batches: list[Batch], numbers: dict[int, int]) -> list[Described]:
    return [(b.start, b.end, b.closed_at, b.reason, sorted(numbers[id(m)] for m in b.messages), b.run) for b in batches]


def numbered(arrivals: list[list[Message]]) -> dict[int, int]:
    """Number messages by their identity, in the order in which they arrive."""
    return {id(m): number for number, m in enumerate(m for call in arrivals for m in call)}


def described_columns(batches: RateBatches) -> list[Described]:
    return [
        (
            int(batches.starts[k]),
            int(batches.ends[k]),
            int(batches.closed_at[k]),
            batches.reasons[k],
            sorted(batches.messages[batches.offsets[k] : batches.offsets[k + 1]].tolist()),
            batches.runs[k],
        )
        for k in range(len(batches.starts))
    ]


def run_class(arrivals: list[list[Message]], chosen: dict[str, Any], *, flush: bool = True) -> list[Described]:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    batches = [batch for call in arrivals for batch in batcher.add(call)]
    return described(batches + (batcher.flush() if flush else []), numbered(arrivals))


def laid_out(arrivals: list[list[Message]], names: list[str]) -> tuple[Any, Any, Any]:
    messages = [m for call in arrivals for m in call]
    codes = np.array([names.index(m.stream) for m in messages], np.int32)
    times = np.array([m.event_time for m in messages], np.int64)
    return codes, times, np.cumsum([0, *map(len, arrivals)])


def received(arrivals: list[list[Message]]) -> Any:
    """Return the receive times; 0 for none."""
    return np.array([m.receive_time or 0 for call in arrivals for m in call], np.int64)


NAMES = ["log", "a", "b", "c", "late", "det", "mon", "cpu", "disk", "run"]
