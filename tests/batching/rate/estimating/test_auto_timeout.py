"""A timeout that follows the delays of the gating streams: everything lands in its window, and no longer wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.batching.rate.columns import described_columns, laid_out, run_class
from tests.batching.rate.traffic import SECOND, T0, frozen, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message


def polled(slow: Callable[[float], float], seconds: int, poll: int = SECOND // 10) -> list[list[Message]]:
    """Two streams at 14 Hz, of which one arrives later by a number of seconds, in the calls of a poll."""
    arrivals = [(m.event_time, m) for m in pulses("quick", 14, 0, seconds)]
    arrivals += [
        (m.event_time + round(slow((m.event_time - T0) / SECOND) * SECOND), m) for m in pulses("slow", 14, 0, seconds)
    ]
    arrivals.sort(key=lambda arrival: (arrival[0], arrival[1].stream))
    calls: dict[int, list[Message]] = {}
    for received, message in arrivals:
        calls.setdefault(received // poll, []).append(message)
    return list(calls.values())


def batched(batcher: RateAwareBatcher, calls: list[list[Message]]) -> list[Batch]:
    return [batch for call in calls for batch in batcher.add(call)]


@pytest.mark.parametrize("delay", [0.5, 1, 1.5, 1.9])
def test_a_stream_that_arrives_later_is_waited_for(delay: float) -> None:
    batcher = RateAwareBatcher(timeout="auto", clock=frozen)
    batches = batched(batcher, polled(lambda _: delay, 60))
    assert all(batch.reason == "slots" and not batch.outside for batch in batches[8:])
    assert min((1.2 + delay - 0.1) * SECOND, 2.9 * SECOND) <= batcher.timeout <= 3 * SECOND


def test_no_delay_leaves_the_default() -> None:
    calls = polled(lambda _: 0, 30)
    auto, default = RateAwareBatcher(timeout="auto", clock=frozen), RateAwareBatcher(clock=frozen)
    assert batched(auto, calls) == batched(default, calls)
    assert auto.timeout == default.timeout == 1_200_000_000


def test_delays_beyond_the_bound_are_not_waited_for() -> None:
    batcher = RateAwareBatcher(timeout="auto", clock=frozen)
    batched(batcher, polled(lambda _: 5, 30))
    assert batcher.timeout == 1_200_000_000


def test_delays_that_have_ended_are_forgotten() -> None:
    batcher = RateAwareBatcher(timeout="auto", clock=frozen)
    calls = polled(lambda now: 1.5 if now < 20 else 0, 80)
    batched(batcher, [call for call in calls if call[0].event_time < T0 + 20 * SECOND])
    assert batcher.timeout > 2_500_000_000
    batched(batcher, [call for call in calls if call[0].event_time >= T0 + 20 * SECOND])
    assert batcher.timeout < 1_300_000_000


def test_another_length_keeps_the_delay() -> None:
    batcher = RateAwareBatcher(timeout="auto", clock=frozen)
    calls = polled(lambda _: 1.5, 60)
    batched(batcher, calls[:400])
    batcher.set_batch_length("2s")
    batched(batcher, calls[400:])
    assert 3_700_000_000 <= batcher.timeout <= 4_000_000_000


@pytest.mark.parametrize("delay", [0.7, 1.9, 5])
def test_the_columns_wait_alike_also_when_restored(delay: float) -> None:
    calls = polled(lambda now: delay if now < 20 else delay / 2, 40)
    names = ["quick", "slow"]
    columns = RateAwareColumns(names, timeout="auto")
    codes, times, bounds = laid_out(calls, names)
    half = len(calls) // 2
    middle = int(bounds[half])
    found = described_columns(columns.add(codes[:middle], times[:middle], bounds[: half + 1]))
    restored = RateAwareColumns.restore(columns.state(), names)
    found += described_columns(
        restored.add(codes[middle:], times[middle:], np.asarray(bounds[half:]) - middle, flush=True)
    )
    assert found == run_class(calls, {"timeout": "auto"})


def test_a_checkpoint_tells_it_from_the_default() -> None:
    assert RateOptions.checked("1s", "auto", gated=True).facts() != RateOptions.checked("1s", None, gated=True).facts()


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="timeout must be a duration"):
        RateAwareBatcher(timeout="automatic")
