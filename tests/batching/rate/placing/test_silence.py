"""Forgetting a source after a silence: by receive times alone, so that it is the same live and in a replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, at, calls, frozen, message, options, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.by_source import BySource
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")


def received(messages: list[Message], source: str = "s", after: int = 0) -> list[Message]:
    return [m.replace(source=source, receive_time=m.event_time + after) for m in messages]


def before_and_after(silence: float) -> tuple[list[Message], list[Message]]:
    """A detector's pulses of six seconds, and of six more after so many seconds without."""
    again = round(5 + 13 / 14 + silence, 9)
    return received(pulses("det", 14, 0, 6)), received(pulses("det", 14, 0, 6, phase=again))


def one_by_one(batcher: RateAwareBatcher | BySource, messages: list[Message]) -> list[Batch]:
    return [batch for m in messages for batch in batcher.add([m])]


def anew(*parts: list[Message]) -> list[Batch]:
    """Batch each part by a batcher of its own, to the end."""
    found: list[Batch] = []
    for part in parts:
        batcher = RateAwareBatcher("1s")
        found += one_by_one(batcher, part) + batcher.flush()
    return found


def test_messages_after_a_silence_begin_again():
    batcher = RateAwareBatcher("1s", forget_after="10s")
    before, after = before_and_after(silence=10.001)
    assert one_by_one(batcher, before + after) + batcher.flush() == anew(before, after)


def test_a_silence_of_exactly_that_length_forgets_nothing():
    before, after = before_and_after(silence=0)
    last = before[-1].event_time
    first, *others = [m.replace(receive_time=last + 10 * SECOND) for m in after]
    batcher = RateAwareBatcher("1s", forget_after="10s")
    assert one_by_one(batcher, [*before, first, *others]) + batcher.flush() == anew([*before, first, *others])


def test_a_call_with_one_message_that_was_received_in_time_ends_no_silence():
    batcher = RateAwareBatcher("1s", forget_after="10s")
    batcher.add(received([message("a", at(0))]))
    together = received([message("a", at(9)), message("a", at(99))])
    assert "start" not in {batch.reason for batch in batcher.add(together)}
    assert [batch.reason for batch in batcher.add(received([message("a", at(110))]))] == ["flush", "start"]


@given(calls(), options, st.integers(1, 4 * SECOND), st.integers(0, 80))
def test_a_batcher_that_forgets_is_a_new_one_for_each_life_wherever_it_is_restored(
    arrivals: list[list[Message]], chosen: dict[str, Any], forget_after: int, cut: int
):
    arrivals = [received(call) for call in arrivals]
    forgetful = RateAwareBatcher(**chosen, clock=frozen, forget_after=forget_after)
    one = RateAwareBatcher(**chosen, clock=frozen)
    clock = None
    for number, call in enumerate(arrivals):
        if number == cut:
            forgetful = RateAwareBatcher.restore(forgetful.state(), clock=frozen)
        times = [m.receive_time or 0 for m in call]
        expected: list[Batch] = []
        if clock is not None and min(times) - clock > forget_after:
            expected, one, clock = one.flush(), RateAwareBatcher(**chosen, clock=frozen), None
        clock = max(times) if clock is None else max(clock, *times)
        assert forgetful.add(call) == expected + one.add(call)
    assert forgetful.flush() == one.flush()


def test_a_promise_forgets_silent_sources_and_gives_out_what_is_open():
    sources = BySource(lambda: RateAwareBatcher("1s", forget_after="10s"))
    before, after = before_and_after(silence=20)
    before = before[:-3]
    found = one_by_one(sources, before)
    last = before[-1].event_time
    one_by_one(sources, received(pulses("det", 14, 0, 1), source="other", after=8 * SECOND))
    assert sources.advance(last + 10 * SECOND - 1) == []
    closed = sources.advance(last + 10 * SECOND)
    assert {batch.reason for batch in closed} == {"flush"}
    assert set(sources.stats()) == {"other"}
    found += closed + one_by_one(sources, after)
    assert found + [batch for batch in sources.flush() if batch.source == "s"] == anew(before, after)


def test_a_length_that_was_set_outlives_a_silence():
    batcher = RateAwareBatcher("1s", forget_after="10s")
    before, after = before_and_after(silence=20)
    one_by_one(batcher, before)
    batcher.set_batch_length("2s")
    one_by_one(batcher, after[:1])
    assert batcher.batch_length == 2 * SECOND


def test_a_message_without_receive_time_is_refused_where_that_counts():
    batcher = RateAwareBatcher("1s", forget_after="10s")
    with pytest.raises(
        InvalidArgumentError,
        match=r"receive_time must be set if forget_after is set, got None in the message of stream 'det'",
    ):
        batcher.add([message("det", at(0))])
    assert batcher.tracked_streams == set()
    with pytest.raises(InvalidArgumentError, match="forget_after"):
        RateAwareBatcher("1s", forget_after=0)


@pytest.mark.parametrize("forget_after", [None, "10s"])
def test_a_promise_that_is_no_time_is_refused_even_if_nothing_is_forgotten(forget_after: str | None):
    with pytest.raises(InvalidArgumentError, match="now must be"):
        RateAwareBatcher("1s", forget_after=forget_after).advance("soon")


def test_a_timeout_that_followed_delays_begins_again_after_a_silence():
    late = [m.replace(receive_time=m.event_time + 9 * SECOND // 10) for m in pulses("mon", 5, 0, 6)]
    traffic = sorted([*received(pulses("det", 14, 0, 6)), *late], key=lambda m: m.receive_time or 0)
    batcher = RateAwareBatcher("1s", timeout="auto", forget_after="30s", clock=frozen)
    one_by_one(batcher, traffic)
    assert batcher.timeout > 19 * SECOND // 10
    batcher.advance(at(60))
    assert batcher.timeout == 12 * SECOND // 10
