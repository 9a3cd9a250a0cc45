"""What holds for batching by rate for any messages: nothing lost, nothing twice, time forwards, memory bounded."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, T0, YEAR, by_time, calls, frozen, message, options, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

# Calls drawn at random bring anything.
pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")


def run(batcher: RateAwareBatcher, arrivals: list[list[Message]]) -> list[Batch]:
    batches: list[Batch] = []
    for call in arrivals:
        batches += batcher.add(call)
    return batches + batcher.flush()


@given(calls(), options)
def test_no_message_is_lost_or_delivered_twice(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    batches = run(RateAwareBatcher(**chosen, clock=frozen), arrivals)
    given_out = sorted(m.payload for batch in batches for m in batch.messages)
    assert given_out == sorted(m.payload for call in arrivals for m in call)


@given(calls(), options)
def test_windows_go_forwards_without_overlap_but_for_a_stall(
    arrivals: list[list[Message]], chosen: dict[str, Any]
) -> None:
    batches = run(RateAwareBatcher(**chosen, clock=frozen), arrivals)
    assert len({batch.id for batch in batches}) == len(batches)
    for before, after in pairwise(batches):
        assert before.reason == "stall" or before.end <= after.start
        assert before.reason == "stall" or before.closed_at <= after.closed_at
    assert all(batch.start < batch.end for batch in batches)


@given(calls(), options)
def test_the_high_water_mark_keeps_below_its_cap(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    before = None
    for call in arrivals:
        batches = batcher.add(call)
        mark, window = batcher.high_water_mark, batcher.window
        assert mark is not None
        assert window is not None
        assert mark <= window[0] + 3 * batcher.batch_length + chosen["max_disorder"]
        assert before is None or mark >= before or any(batch.reason == "stall" for batch in batches)
        before = mark


@given(calls(), options, st.data())
def test_a_batcher_restored_anywhere_continues_as_if_never_stopped(
    arrivals: list[list[Message]], chosen: dict[str, Any], data: st.DataObject
) -> None:
    never_stopped = RateAwareBatcher(**chosen, clock=frozen)
    stopped = RateAwareBatcher(**chosen, clock=frozen)
    stops = data.draw(st.sets(st.integers(0, len(arrivals)), max_size=3))
    for number, call in enumerate(arrivals):
        if number in stops:
            stopped = RateAwareBatcher.restore(stopped.state(), clock=frozen)
            assert stopped.state() == never_stopped.state()
        assert stopped.add(call) == never_stopped.add(call)
    assert stopped.flush() == never_stopped.flush()


@given(calls(), options, st.integers(0, 10**6))
def test_a_clock_that_jumps_back_changes_nothing(
    arrivals: list[list[Message]], chosen: dict[str, Any], seed: int
) -> None:
    readings = iter(range(seed, -(10**9), -1))
    backwards = RateAwareBatcher(**chosen, clock=lambda: float(next(readings)))
    assert run(backwards, arrivals) == run(RateAwareBatcher(**chosen, clock=frozen), arrivals)


@given(st.sampled_from([YEAR, -YEAR, 900 * SECOND, 30 * SECOND, -30 * SECOND, 4 * SECOND]), st.integers(0, 60 * 14 - 1))
def test_one_wild_time_costs_at_most_one_stall(jump: int, where: int) -> None:
    times = [T0 + k * SECOND // 14 for k in range(60 * 14)]
    times[where] += jump
    batcher = RateAwareBatcher(clock=frozen)
    batches = run(batcher, [[message("det", t)] for t in times])
    assert sum(batch.reason == "stall" for batch in batches) <= 1
    # A stall lasts ten lengths; around it, batches close as ever.
    assert sum(batch.reason == "slots" for batch in batches) >= 60 - 16


@given(
    st.sampled_from([2, 5, 14, 50]),
    st.sets(st.integers(0, 399), max_size=120),
    st.lists(st.floats(-0.45, 0.45), min_size=400, max_size=400),
    st.sampled_from([SECOND, 2 * SECOND, 530_000_000]),
)
def test_gated_messages_lie_in_their_window_up_to_half_a_period(
    rate: int, missed: set[int], jitters: list[float], length: int
) -> None:
    period = SECOND // rate
    batcher = RateAwareBatcher(length, clock=frozen)
    # The grid is known before the jitter begins; a window that closed before a message came cannot hold it.
    batches = batcher.add([message("det", T0 - k * SECOND // rate) for k in range(40, -1, -1)])
    for k in range(1, 400):
        if k not in missed:
            batches += batcher.add([message("det", T0 + k * SECOND // rate + int(jitters[k] * period))])
    for batch in batches[1:] + batcher.flush():
        for m in batch.messages:
            assert m.event_time < batch.end + period / 2 + 1
            assert m.event_time >= batch.start - period / 2 - 1_000_001 or _came_late(m, batch, batches)


def _came_late(m: Message, batch: Batch, batches: list[Batch]) -> bool:
    closed_before = [b for b in batches if b.end <= batch.start]
    return any(b.start - SECOND <= m.event_time < b.end + SECOND for b in closed_before)


@given(calls(), st.integers(0, 6))
def test_no_stream_that_may_not_gate_holds_a_window_open(arrivals: list[list[Message]], ahead: int) -> None:
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batcher.add([message("det", T0 - k * SECOND // 14) for k in range(14, -1, -1)])
    riding = [m for call in arrivals for m in call if abs(m.event_time - T0) < 30 * SECOND]
    detector = [message("det", T0 + k * SECOND // 14) for k in range(1, 14 * 40)]
    merged = sorted(detector + riding, key=lambda m: m.event_time - (ahead * SECOND if m.stream != "det" else 0))
    for m in merged:
        batcher.add([m])
    window = batcher.window
    assert window is not None
    assert window[0] >= T0 + 39 * SECOND


def test_catching_up_is_linear() -> None:
    def operations(seconds: int) -> float:
        batcher = RateAwareBatcher(gated=("det", "mon"), clock=frozen)
        for k in range(14 * 20):
            batcher.add([message("det", T0 - 20 * SECOND + k * SECOND // 14)])
        backlog = by_time(
            pulses("det", 14, 0, seconds), pulses("mon", 5, 0, seconds), pulses("log", 10, 0, seconds, phase=0.03)
        )
        counted = 0

        def count(_frame: object, _event: str, _argument: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            batches = batcher.add(backlog)
        finally:
            sys.setprofile(None)
        assert len(batches) > seconds - 3
        return counted / len(backlog)

    each = [operations(seconds) for seconds in (125, 250, 500, 1000)]
    assert max(each) < 1.1 * min(each)


@given(calls(), st.sampled_from(["1s", "300ms"]))
def test_the_buffer_in_steady_traffic_stays_bounded(arrivals: list[list[Message]], batch_length: str) -> None:
    batcher = RateAwareBatcher(batch_length, clock=frozen)
    for call in arrivals:
        batcher.add(call)
    after = max(batcher.window or (0, T0))
    for k in range(30 * 14):
        batcher.add([message("det", max(after, T0) + k * SECOND // 14)])
    assert batcher.buffered <= 14 * 4 + 1000
