"""The estimator learns a rate from event times, also where pulses are missing, split, late or jittered."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, T0

from waterclock.batching.rate.period import StreamPeriodEstimator


def learned(times: list[int]) -> int | None:
    estimator = StreamPeriodEstimator()
    for event_time in times:
        estimator.observe(event_time)
    return estimator.rate


@given(st.integers(1, 10_000), st.integers(0, SECOND))
def test_every_whole_rate_from_1_hz_to_10_khz_is_exact(rate: int, phase: int) -> None:
    assert learned([T0 + phase + k * SECOND // rate for k in range(33)]) == rate


@given(
    st.sampled_from([1, 5, 14, 25, 100, 1000, 10_000]),
    st.sets(st.integers(0, 59), min_size=18, max_size=18),
    st.lists(st.sampled_from([1, 1, 3]), min_size=60, max_size=60),
)
def test_30_percent_missed_pulses_and_splits_change_nothing(rate: int, missed: set[int], copies: list[int]) -> None:
    times = [T0 + k * SECOND // rate for k in range(60) if k not in missed for _ in range(copies[k])]
    assert learned(times) == rate


def test_it_takes_four_differences() -> None:
    times = [T0 + k * SECOND // 14 for k in range(5)]
    assert learned(times[:4]) is None
    assert learned(times) == 14


def test_only_the_last_32_differences_count() -> None:
    estimator = StreamPeriodEstimator()
    for k in range(20):
        estimator.observe(T0 + k * SECOND // 14)
    assert estimator.rate == 14
    for k in range(33):
        estimator.observe(T0 + 2 * SECOND + k * SECOND // 5)
    assert estimator.rate == 5
    assert len(estimator.differences) == 32


def test_messages_out_of_order_leave_no_difference() -> None:
    times = [T0 + k * SECOND // 14 for k in range(40)]
    for k in range(1, 39, 3):
        times[k], times[k + 1] = times[k + 1], times[k]
    assert learned(times) == 14


@given(st.randoms(use_true_random=False), st.sampled_from([1, 5, 14, 50]))
def test_a_jitter_of_5_percent_changes_no_rate(random: Random, rate: int) -> None:
    period = SECOND // rate
    times = [T0 + k * period + random.randint(-period // 80, period // 80) for k in range(33)]
    assert learned(times) == rate


@given(st.randoms(use_true_random=False))
def test_a_rate_in_use_stays_under_jitter_that_leaves_the_estimate_uncertain(random: Random) -> None:
    estimator = StreamPeriodEstimator()
    for k in range(300):
        estimator.observe(T0 + k * SECOND // 14 + random.randint(-10_000_000, 10_000_000))
        assert k < 32 or estimator.rate_after(14) == 14


def test_a_rate_in_use_gives_way_to_one_that_is_certain() -> None:
    estimator = StreamPeriodEstimator()
    for k in range(33):
        estimator.observe(T0 + k * SECOND // 15)
    assert estimator.rate_after(14) == 15


@pytest.mark.parametrize(("period", "rate"), [(2.0, None), (1.18, None), (1.06, 1), (0.4, None), (0.49, 2)])
def test_a_rate_is_snapped_within_10_percent_or_a_tenth_of_a_hertz(period: float, rate: int | None) -> None:
    assert learned([T0 + round(k * period * SECOND) for k in range(20)]) == rate


def test_after_a_clock_was_set_back_differences_count_again() -> None:
    estimator = StreamPeriodEstimator()
    estimator.observe(T0 + 100 * SECOND)
    for k in range(10):
        estimator.observe(T0 + k * SECOND // 14, set_back=3 * SECOND)
    assert estimator.rate == 14


def test_forgotten_messages_no_longer_count() -> None:
    estimator = StreamPeriodEstimator()
    numbers = count()
    for _ in range(10):
        estimator.observe(T0 + next(numbers) * SECOND // 14)
    estimator.forget()
    assert estimator.rate is None
    for _ in range(4):
        estimator.observe(T0 + next(numbers) * SECOND // 14)
    assert estimator.rate is None
