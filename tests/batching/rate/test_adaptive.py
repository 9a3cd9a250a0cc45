"""The batch length follows what its consumer can bear."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, at, message

from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.live.rules import ByRate


def test_two_slow_batches_running_double_the_length_up_to_eight_times() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    lengths = [adaptive.processed("20s") for _ in range(10)]
    assert lengths[0] == SECOND
    assert lengths[1] == 2 * SECOND
    assert lengths[3] == 4 * SECOND
    assert lengths[5:] == [8 * SECOND] * 5


def test_one_slow_batch_between_others_changes_nothing() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    for took in ("2s", "900ms", "2s", "900ms"):
        assert adaptive.processed(took) == SECOND


def test_three_fast_batches_shrink_the_length_by_root_two_to_whole_pulses() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    for _ in range(2):
        adaptive.processed("9s")
    assert adaptive.pulses == 28
    for _ in range(3):
        adaptive.processed("100ms")
    assert adaptive.pulses == 20
    assert adaptive.batch_length == round(20 * SECOND / 14)
    for _ in range(9):
        adaptive.processed("100ms")
    assert adaptive.pulses == 14


def test_a_batch_that_takes_as_long_as_its_window_is_not_slow() -> None:
    adaptive = AdaptiveBatchLength("1s")
    assert [adaptive.processed("1s") for _ in range(4)] == [SECOND] * 4


def test_fast_batches_that_do_not_follow_each_other_change_nothing() -> None:
    adaptive = AdaptiveBatchLength("1s")
    for _ in range(2):
        adaptive.processed("3s")
    for took in ("100ms", "100ms", "1900ms", "100ms", "100ms"):
        assert adaptive.processed(took) == 2 * SECOND


def test_70_percent_of_the_window_is_not_fast() -> None:
    adaptive = AdaptiveBatchLength("1s")
    for _ in range(2):
        adaptive.processed("3s")
    for _ in range(5):
        assert adaptive.processed("1400ms") == 2 * SECOND


def test_three_windows_without_anything_shrink_the_length() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=100)
    for _ in range(2):
        adaptive.processed("3s")
    adaptive.nothing_came()
    adaptive.nothing_came()
    adaptive.processed("1900ms")
    assert adaptive.nothing_came() == 2 * SECOND
    adaptive.nothing_came()
    adaptive.nothing_came()
    assert adaptive.pulses == 141


def test_a_batch_from_before_a_change_is_judged_by_its_own_window() -> None:
    adaptive = AdaptiveBatchLength("1s")
    adaptive.processed("1500ms", window="1s")
    adaptive.processed("1500ms", window="1s")
    adaptive.processed("1500ms", window="1s")
    assert adaptive.processed("1500ms", window="1s") == 4 * SECOND


@pytest.mark.parametrize(("length", "rate"), [("0s", 1), ("10ms", 14), ("1s", 0), ("1s", 1.5), (float("nan"), 1)])
def test_a_length_below_a_pulse_is_refused(length: str, rate: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"batch_length|rate"):
        AdaptiveBatchLength(length, rate)


@pytest.mark.parametrize("build", [RateAwareBatcher, ByRate.checked])
def test_a_length_that_could_grow_beyond_30_days_is_refused(build: Callable[[AdaptiveBatchLength], object]) -> None:
    with pytest.raises(InvalidArgumentError, match="batch_length must be at most 30d"):
        build(AdaptiveBatchLength("20d"))


def lengths_under(adaptive: AdaptiveBatchLength, cost: Callable[[int], int], batches: int = 200) -> list[int]:
    """Report batches that take ``cost`` of the length in pulses, ns, and return the lengths without repeats."""
    lengths = [adaptive.pulses]
    for _ in range(batches):
        adaptive.processed(cost(adaptive.pulses))
        if adaptive.pulses != lengths[-1]:
            lengths.append(adaptive.pulses)
    return lengths


def costs_between_all_limits(first: int) -> list[int]:
    """Return a cost of each range, ns, within which all lengths that a first length leads to judge alike."""
    reached, found = {first}, {0}
    while found != reached:
        found = set(reached)
        reached |= {min(2 * pulses, 8 * first) for pulses in found} | {max(round(p / 2**0.5), first) for p in found}
    limits = sorted({0, *(pulses * percent * SECOND // 100 for pulses in reached for percent in (70, 99, 100))})
    return [(low + high) // 2 for low, high in pairwise([*limits, 10 * first * SECOND])]


@pytest.mark.parametrize("first", range(1, 65))
def test_no_length_is_returned_to_under_a_steady_load(first: int) -> None:
    for cost in costs_between_all_limits(first):
        lengths = lengths_under(AdaptiveBatchLength(first * SECOND), lambda _, cost=cost: cost, 40)
        assert len(lengths) == len(set(lengths)), f"{cost} ns: {lengths}"


@given(
    first=st.integers(1, 64),
    before=st.tuples(st.integers(0, 12 * SECOND), st.integers(0, SECOND)),
    load=st.tuples(st.integers(0, 12 * SECOND), st.integers(0, SECOND)),
    rate=st.sampled_from([1, 2, 14]),
)
def test_lengths_settle_after_a_change_of_load(
    first: int, before: tuple[int, int], load: tuple[int, int], rate: int
) -> None:
    """Some ns a batch and some for each of its pulses."""
    adaptive = AdaptiveBatchLength((first * SECOND + rate // 2) // rate, rate)
    lengths_under(adaptive, lambda pulses: before[0] + before[1] * pulses, 40)
    lengths = lengths_under(adaptive, lambda pulses: load[0] + load[1] * pulses, 60)
    assert len(lengths) == len(set(lengths)), lengths


@pytest.mark.parametrize("first", range(1, 65, 4))
def test_noise_below_the_step_leads_back_to_a_length_once_at_most(first: int) -> None:
    noise = random.Random(first)  # noqa: S311  # a load
    for cost in costs_between_all_limits(first):
        adaptive = AdaptiveBatchLength(first * SECOND)
        lengths = lengths_under(adaptive, lambda _, cost=cost: cost * noise.randint(86, 114) // 100, 60)
        assert max(map(lengths.count, lengths)) <= 2, f"{cost} ns: {lengths}"


def test_a_length_that_was_too_short_is_used_again_once_the_load_fell_by_more_than_the_step() -> None:
    adaptive = AdaptiveBatchLength("1s")
    lengths_under(adaptive, lambda _: 11 * SECOND // 10, 3)
    assert adaptive.pulses == 2
    lengths_under(adaptive, lambda _: 56 * SECOND // 100, 9)
    assert adaptive.pulses == 2
    lengths_under(adaptive, lambda _: 54 * SECOND // 100, 3)
    assert adaptive.pulses == 1


def test_a_length_that_was_too_short_is_used_again_once_nothing_came() -> None:
    adaptive = AdaptiveBatchLength("1s")
    lengths_under(adaptive, lambda _: 11 * SECOND // 10, 2)
    assert [adaptive.nothing_came() for _ in range(3)] == [2 * SECOND, 2 * SECOND, SECOND]


def test_lengths_stay_between_their_bounds() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=2, longest="2700ms")
    assert adaptive.bounds == (SECOND, 5 * SECOND // 2)
    assert max(lengths_under(adaptive, lambda _: 9 * SECOND)) == 5
    with pytest.raises(InvalidArgumentError, match="'longest' must be at least batch_length"):
        AdaptiveBatchLength("1s", longest="900ms")


@pytest.mark.parametrize(("pulses", "rate"), [(1, 3), (4, 3), (5, 7), (3, 14)])
def test_the_longest_length_may_be_the_first_one(pulses: int, rate: int) -> None:
    length = round(pulses * SECOND / rate)
    assert AdaptiveBatchLength(length, rate, longest=length).bounds == (length, length)
    assert AdaptiveBatchLength("1s", rate, longest=2 * SECOND - 1).bounds[1] < 2 * SECOND


def test_batches_that_boundaries_cut_short_do_not_lengthen_the_others() -> None:
    batcher = RateAwareBatcher("adaptive", boundaries={"run"})
    batches = [b for t in range(40) for b in batcher.add([message("run" if t % 4 else "a", at(t / 8 + 1 / 3))])]
    assert [b.reason for b in batches].count("boundary") > 10
    assert {batcher.processed("200ms", batch) for batch in batches} == {SECOND}


def test_a_saved_state_continues_identically() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14, longest="4s")
    for took in ("3s", "3s", "100ms", "100ms"):
        adaptive.processed(took)
    restored = AdaptiveBatchLength.from_facts(adaptive.facts())
    for took in ("100ms", "5s", "5s", "5s", "5s"):
        assert restored.processed(took) == adaptive.processed(took)
    assert restored.facts() == adaptive.facts()
