"""What holds for batching by rate whatever comes: nothing lost, nothing twice, time forwards, memory bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, T0, YEAR, calls, frozen, message, options

from waterclock.batching.batch import Batch
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.message import Message


def run(batcher: RateAwareBatcher, arrivals: list[list[Message]]) -> list[Batch]:
    batches: list[Batch] = []
    for call in arrivals:
        batches += batcher.add(call)
    return batches + batcher.flush()


@settings(max_examples=300, deadline=None)
@given(calls(), options)
def test_no_message_is_lost_or_delivered_twice(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    batches = run(RateAwareBatcher(**chosen, clock=frozen), arrivals)
    given_out = sorted(m.payload for batch in batches for m in batch.messages)
    assert given_out == sorted(m.payload for call in arrivals for m in call)


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(calls(), options)
def test_the_high_water_mark_keeps_below_its_cap(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    before = None
    for call in arrivals:
        batches = batcher.add(call)
        mark, window = batcher.high_water_mark, batcher.window
        assert mark is not None
        assert window is not None
        assert mark <= window[0] + 3 * batcher.batch_length
        assert before is None or mark >= before or any(batch.reason == "stall" for batch in batches)
        before = mark


@settings(max_examples=200, deadline=None)
@given(calls(), options, st.data())
def test_a_batcher_restored_anywhere_goes_on_as_if_never_stopped(
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


@settings(max_examples=200, deadline=None)
@given(calls(), options, st.integers(0, 10**6))
def test_a_clock_that_jumps_back_changes_nothing(
    arrivals: list[list[Message]], chosen: dict[str, Any], seed: int
) -> None:
    readings = iter(range(seed, -(10**9), -1))
    backwards = RateAwareBatcher(**chosen, clock=lambda: float(next(readings)))
    assert run(backwards, arrivals) == run(RateAwareBatcher(**chosen, clock=frozen), arrivals)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([YEAR, -YEAR, 900 * SECOND, 30 * SECOND, -30 * SECOND, 4 * SECOND]), st.integers(0, 60 * 14 - 1))
def test_one_wild_time_costs_at_most_one_stall(jump: int, where: int) -> None:
    times = [T0 + k * SECOND // 14 for k in range(60 * 14)]
    times[where] += jump
    batcher = RateAwareBatcher(clock=frozen)
    batches = run(batcher, [[message("det", t)] for t in times])
    assert sum(batch.reason == "stall" for batch in batches) <= 1
    # A stall lasts ten lengths; around it, batches close as ever.
    assert sum(batch.reason == "slots" for batch in batches) >= 60 - 16


@settings(max_examples=60, deadline=None)
@given(calls(), st.sampled_from(["1s", "300ms"]))
def test_what_is_buffered_in_steady_traffic_stays_bounded(arrivals: list[list[Message]], batch_length: str) -> None:
    batcher = RateAwareBatcher(batch_length, clock=frozen)
    for call in arrivals:
        batcher.add(call)
    after = max(batcher.window or (0, T0))
    for k in range(30 * 14):
        batcher.add([message("det", max(after, T0) + k * SECOND // 14)])
    assert batcher.buffered <= 14 * 4 + 1000
