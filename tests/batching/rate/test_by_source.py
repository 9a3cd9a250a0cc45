"""Many sources, each batched by its streams' rates."""

from __future__ import annotations

import pytest
from tests.batching.rate.traffic import SECOND, T0, by_time

from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message


def of(source: str, first: int, stop: int) -> list[Message]:
    return [Message(source, "det", T0 + k * SECOND // 14) for k in range(first, stop)]


def test_each_source_gets_its_own_messages_of_a_list_in_one_call() -> None:
    many = BySource(lambda: RateAwareBatcher("1s"))
    one = RateAwareBatcher("1s")
    batches = [b for k in range(0, 70, 10) for b in many.add(by_time(of("x", k, k + 10), of("y", k, k + 10)))]
    batches += many.flush()
    alone = [b for k in range(0, 70, 10) for b in one.add(of("x", k, k + 10))] + one.flush()
    assert [b for b in batches if b.source == "x"] == alone
    assert [b.start for b in batches if b.source == "y"] == [b.start for b in alone]


def test_a_lone_message_is_a_call_of_its_own() -> None:
    many = BySource(lambda: RateAwareBatcher("1s"))
    batches = [b for message in of("x", 0, 30) for b in many.add(message)]
    assert [b.reason for b in batches] == ["start", "timeout", "slots"]
    assert many.next_deadline is None
    assert many.take_rejected() == []


def test_advancing_has_every_source_look_at_the_clock() -> None:
    now = 0.0
    many = BySource(lambda: RateAwareBatcher("1s", clock=lambda: now))
    many.add(of("x", 0, 15))
    many.add(of("x", 15, 20))
    assert many.advance(T0) == []
    now = 10.0
    assert [b.reason for b in many.advance(T0)] == ["stall"]


def test_advancing_looks_only_where_a_window_may_have_stalled() -> None:
    now, looks = 0.0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    many = BySource(lambda: RateAwareBatcher("1s", clock=clock))
    for k in range(100):
        many.add(of(f"idle {k}", 0, 15))
    many.add(of("busy", 0, 15))
    many.add(of("busy", 15, 20))
    looks = 0
    assert many.advance(T0) == []
    assert looks < 5
    now = 10.0
    assert [b.source for b in many.advance(T0)] == ["busy"]
    assert many.advance(T0) == []


def test_a_clock_that_jumps_back_restarts_the_count_of_every_source() -> None:
    now = 100.0
    many = BySource(lambda: RateAwareBatcher("1s", clock=lambda: now))
    many.add(of("x", 0, 15))
    many.add(of("x", 15, 20))
    now = 0.0
    assert many.advance(T0) == []
    now = 10.0
    assert [b.reason for b in many.advance(T0)] == ["stall"]


def test_a_silent_source_with_nothing_buffered_is_forgotten() -> None:
    now = 0.0
    many = BySource(lambda: RateAwareBatcher("1s", clock=lambda: now))
    many.add(of("x", 0, 15))
    many.add(of("y", 0, 15))
    many.add(of("y", 15, 20))
    now = 3600.0
    assert many.forget(idle="1h") == 1
    assert set(many.stats()) == {"y"}
    assert [b.reason for b in many.add(of("x", 50_400, 50_415))] == ["start"]


def test_a_window_set_again_begins_at_what_comes_next_and_repeats_no_identity() -> None:
    many = BySource(lambda: RateAwareBatcher("1s"))
    batches = [b for k in range(0, 140, 10) for b in many.add(of("x", k, k + 10))]
    batches += many.reset("x")
    batches += [b for k in range(0, 140, 10) for b in many.add(of("x", k, k + 10))]
    batches += many.flush()
    assert sum(len(b.messages) for b in batches) == 280
    assert all(b.messages for b in batches)
    assert len({b.id for b in batches}) == len(batches)
    assert many.stats()["x"].buffered == 0


def test_a_list_that_is_refused_makes_no_source_known() -> None:
    def gated(stream: str) -> bool:
        if stream == "bad":
            raise LookupError(stream)
        return True

    many = BySource(lambda: RateAwareBatcher(gated=gated))
    many.add(of("x", 0, 15))
    with pytest.raises(LookupError):
        many.add([*of("y", 0, 15), *of("x", 15, 20), Message("z", "bad", T0)])
    with pytest.raises(InvalidArgumentError):
        many.add([*of("y", 0, 15), 3])  # pyright: ignore[reportArgumentType]
    assert set(many.stats()) == {"x"}
    assert many.stats()["x"].buffered == 0
    assert [b.source for b in many.add(of("y", 0, 15))] == ["y"]


def test_each_source_has_the_length_that_its_batches_need() -> None:
    many = BySource(lambda: RateAwareBatcher("adaptive"))
    batches = [b for k in range(0, 56, 14) for source in "xy" for b in many.add(of(source, k, k + 14))]
    slow = [many.processed("3s", batch) for batch in batches if batch.source == "x"]
    fast = [many.processed("1ms", batch) for batch in batches if batch.source == "y"]
    assert (slow[-1], fast[-1]) == (2_000_000_000, 1_000_000_000)
    many.flush()
    assert many.forget("0s") == 2
    assert many.processed("3s", batches[0]) is None
    by_event_time = BySource(lambda: EventTimeBatcher("1s", 0))
    by_event_time.add(of("x", 0, 1)[0], T0)
    with pytest.raises(InvalidArgumentError, match="batch must come from batching by rate, got 'x@"):
        by_event_time.processed("1s", batches[0])
