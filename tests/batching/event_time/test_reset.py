"""A receive clock that leapt ahead, and what setting it anew keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.given_out import MOST_SPANS, GivenOut
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

DAY = 86_400


def message(event_time: int, stream: str = "a") -> Message:
    return Message("device", stream, event_time, receive_time=event_time)


def leapt() -> EventTimeBatcher:
    """Make a batcher with a window given out at 100 and one at a day later, whose clock was then set anew."""
    batcher = EventTimeBatcher(window=50, max_delay=20)
    for each in (message(100), message(100 + DAY)):
        batcher.add(each)
    assert [batch.start for batch in batcher.reset("device")] == [100 + DAY]
    return batcher


@pytest.mark.parametrize("restarted", [False, True])
def test_good_messages_are_taken_again_and_none_is_batched_twice(restarted: bool) -> None:
    batcher = leapt()
    if restarted:
        batcher = EventTimeBatcher.restore(batcher.state())
    for each in (message(100, "b"), message(151), message(200, "b"), message(300)):
        batcher.add(each)
    assert [(r.message.event_time, r.reason) for r in batcher.take_rejected()] == [(100, "late")]
    assert [batch.start for batch in batcher.flush()] == [300]


def test_messages_emitted_ahead_are_not_emitted_again_when_their_time_comes() -> None:
    batcher = leapt()
    for each in (message(200), message(100 + DAY), message(100 + DAY, "b"), message(151 + DAY)):
        batcher.add(each)
    reasons = [rejection.reason for rejection in batcher.take_rejected()]
    assert reasons == ["duplicate", "late"]
    assert [batch.start for batch in batcher.flush()] == [151 + DAY]


def test_a_batcher_tells_how_far_its_clock_stands_ahead() -> None:
    batcher = EventTimeBatcher(window=50, max_delay=20)
    assert batcher.stats() == (None, None, 0, 0, {}, {})
    batcher.add(message(DAY))
    batcher.add(message(1))
    assert batcher.stats() == ("device", DAY, DAY - 1, 1, {}, {})
    batcher.reset()
    assert batcher.stats() == ("device", None, 0, 0, {}, {})


def test_the_clock_of_another_source_is_not_set_again() -> None:
    with pytest.raises(InvalidArgumentError, match=r"source must be the batcher's source \('device'\), got 'other'"):
        leapt().reset("other")


@given(st.lists(st.integers(0, 200) | st.just("reset"), max_size=80), st.integers(0, 10), st.integers(0, 10))
def test_no_identity_comes_twice_in_any_order_of_resets(steps: list[int | str], window: int, max_delay: int) -> None:
    batcher = EventTimeBatcher(window=window, max_delay=max_delay)
    batches = []
    for number, step in enumerate(steps):
        batches += batcher.reset() if isinstance(step, str) else batcher.add(message(step, "abc"[number % 3]))
    batches += batcher.flush()
    given_out = [(m.stream, m.event_time) for batch in batches for m in batch.messages]
    assert len({batch.id for batch in batches}) == len(batches)
    assert len(set(given_out)) == len(given_out)


def test_of_many_stretches_the_closest_become_one() -> None:
    given_out = GivenOut(near=5)
    for start in (0, 100_000, *range(1_000, 1_000 + 20 * MOST_SPANS, 20)):
        given_out.add(start, start + 1)
    assert len(given_out.spans) == MOST_SPANS
    assert (0, 1) in given_out.spans
    assert (100_000, 100_001) in given_out.spans
