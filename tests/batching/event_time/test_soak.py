"""As many messages as a source sends in an hour, through the batcher and the columns."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from waterclock.arrow import from_arrow
from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.columns import assign_batches
from waterclock.batching.event_time.rule import OnConflict
from waterclock.time import MAX_NS

MESSAGES = 300_000
MILLISECOND = 1_000_000


def traffic(seed: int) -> pa.Table:
    """Lay out messages of three sources in order of receive time: bursts, silences, redeliveries and broken clocks."""
    chance = np.random.default_rng(seed)
    steps = chance.exponential(3 * MILLISECOND, MESSAGES).astype(np.int64)
    steps[chance.integers(0, MESSAGES, 20)] += 3_600_000 * MILLISECOND
    event_times = np.cumsum(steps) // MILLISECOND * MILLISECOND
    sources = chance.integers(0, 3, MESSAGES)
    streams = chance.integers(0, 12, MESSAGES)
    again = chance.integers(0, MESSAGES, MESSAGES // 20)
    rows = np.concatenate([np.arange(MESSAGES), again])
    received = event_times[rows] + (chance.gamma(2, 150, len(rows)) * MILLISECOND).astype(np.int64) - 20 * MILLISECOND
    order = np.argsort(received, kind="stable")
    rows = rows[order]
    return pa.table(
        {
            "source": [f"source {code}" for code in sources[rows]],
            "stream": [f"stream {code}" for code in streams[rows]],
            "event_time": event_times[rows],
            "receive_time": received[order],
            "payload": [str(number).encode() for number in range(len(rows))],
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
@pytest.mark.parametrize("seed", range(4))
def test_an_hour_of_messages_falls_into_the_same_batches(seed: int, on_conflict: OnConflict) -> None:
    table = traffic(seed)
    batcher = BySource(lambda: EventTimeBatcher("80ms", "600ms", "5ms", on_conflict))
    batches = batcher.add(from_arrow(table)) + batcher.advance(MAX_NS)
    windows = {m.payload: (batch.start, batch.end) for batch in batches for m in batch.messages}
    reasons = {message.payload: reason for message, reason in batcher.take_rejected()}

    rows = assign_batches(table, window="80ms", max_delay="600ms", max_lead="5ms", on_conflict=on_conflict).to_pylist()

    assert {r["payload"]: (r["batch_start"], r["batch_end"]) for r in rows if r["rejected"] is None} == windows
    assert {r["payload"]: r["rejected"] for r in rows if r["rejected"] is not None} == reasons
    assert len(windows) + len(reasons) == len(rows)
