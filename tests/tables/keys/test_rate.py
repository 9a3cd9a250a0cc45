from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from waterclock.tables.model.timing.rate import Rate

SECOND = 1_000_000_000
rates = st.builds(Rate.of, st.floats(0.01, 100_000))
# Each: how long after the last one a consumer asks, and for how many.
requests = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 500)), min_size=1, max_size=60)


def run(rate: Rate, asked: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Let all consumers take as much as the rule allows; return when how many went."""
    now, due = 1_700_000_000 * SECOND, 0
    went: list[tuple[int, int]] = []
    for after, most in asked:
        now += after
        count = rate.allowed(due, now, most)
        due = rate.taken(due, now, count)
        went.append((now, count))
    return went


@given(rates, requests)
def test_over_any_time_no_more_goes_than_the_rate_allows_and_one_burst(
    rate: Rate, asked: list[tuple[int, int]]
) -> None:
    went = run(rate, asked)
    for first, last in itertools.combinations_with_replacement(range(len(went)), 2):
        seconds = Fraction(went[last][0] - went[first][0], SECOND)
        assert sum(count for _, count in went[first : last + 1]) <= Fraction(rate.per_second) * seconds + rate.burst


@given(st.floats(0.5, 100_000))
def test_a_consumer_that_asks_whenever_a_message_is_allowed_reaches_the_full_rate(per_second: float) -> None:
    rate = Rate.of(per_second)
    start = now = 1_700_000_000 * SECOND
    due = total = 0
    for _ in range(300):
        now = max(now, rate.free_at(due))
        count = rate.allowed(due, now, 10)
        assert count, "the time that is returned is the time at which something may go"
        due = rate.taken(due, now, count)
        total += count
    assert total >= per_second * (now - start) / SECOND * 0.999


@given(rates, st.integers(1, 1000), st.integers(0, 10 * SECOND))
def test_before_the_time_that_is_returned_nothing_may_go(rate: Rate, most: int, ahead: int) -> None:
    now = 1_700_000_000 * SECOND
    due = now + ahead
    free_at = rate.free_at(due)
    assert rate.allowed(due, max(free_at, now), most) >= 1
    if free_at > now:
        assert rate.allowed(due, min(now, free_at - 2), most) == 0


def test_after_a_rest_only_one_burst_goes() -> None:
    rate = Rate.of(50)
    assert [count for _, count in run(rate, [(0, 100), (0, 100), (SECOND, 100)])] == [5, 0, 5]


def test_a_slow_rate_still_lets_one_go_at_a_time() -> None:
    assert [count for _, count in run(Rate.of(0.1), [(0, 9), (9 * SECOND, 9), (SECOND, 9)])] == [1, 0, 1]
