from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.options import TableOptions
from waterclock.tables.model.timing.backoff import LONGEST, Backoff
from waterclock.tables.model.timing.lease_length import LONGEST_GIVEN, LeaseLength
from waterclock.time import MAX_NS, to_time

SECOND = 1_000_000_000
swings = st.floats(-1, 1)
backoffs = st.builds(
    Backoff, st.integers(1, 10**15), longest=st.none() | st.integers(10**15, 10**17), jitter=st.floats(0, 0.99)
)
lease_lengths = st.builds(LeaseLength, st.integers(0, 10**15), backoffs)


def test_the_first_wait_is_ack_wait_and_each_further_one_is_twice_the_last() -> None:
    lease = LeaseLength(0, Backoff(30 * SECOND, None, 0))
    assert [lease.of(epoch, 0) // SECOND for epoch in range(5)] == [30, 60, 120, 240, 480]


def test_a_wait_grows_no_longer_than_max_backoff() -> None:
    lease = LeaseLength(0, Backoff(30 * SECOND, 100 * SECOND, 0))
    assert [lease.of(epoch, 0) // SECOND for epoch in range(4)] == [30, 60, 100, 100]


def test_with_min_backoff_every_attempt_has_ack_wait_and_the_pause_after_it_doubles() -> None:
    lease = LeaseLength(30 * SECOND, Backoff(2 * SECOND, None, 0))
    assert [lease.of(epoch, 0) // SECOND for epoch in range(4)] == [32, 34, 38, 46]
    assert [lease.backoff.delay(failures, 0) // SECOND for failures in range(4)] == [2, 4, 8, 16]


def test_jitter_moves_a_wait_either_way_but_never_the_first_one() -> None:
    lease = LeaseLength(0, Backoff(30 * SECOND, None, 0.25))
    assert lease.of(0, 1) == lease.of(0, -1) == 30 * SECOND
    assert lease.of(2, 1) == 150 * SECOND
    assert lease.of(2, -1) == 90 * SECOND


@given(lease_lengths, st.integers(-5, 2**63 - 1), swings)
def test_a_wait_never_overflows_and_stays_within_its_bounds(lease: LeaseLength, epoch: int, swing: float) -> None:
    low, high = lease.bounds
    assert low <= lease.of(epoch, swing) <= high <= 2 * LONGEST


allowed = st.integers(1, LONGEST_GIVEN) | st.just(LONGEST_GIVEN)
any_length = st.integers(LONGEST_GIVEN, MAX_NS) | st.just(MAX_NS)


@given(allowed, st.none() | allowed, st.none() | any_length, any_length, st.integers(0, 2**31 - 1), swings)
def test_no_wait_that_a_table_may_have_ends_after_the_end_of_time(
    ack_wait: int, min_backoff: int | None, max_backoff: int | None, other: int, epoch: int, swing: float
) -> None:
    lease = TableOptions.check(
        ack_wait=ack_wait,
        min_backoff=min_backoff,
        max_backoff=max_backoff,
        jitter=0.99,
        purge_after=other,
        poll_interval=other,
    ).lease_length
    now = to_time("2110-01-01T00:00Z")
    assert now + lease.of(epoch, swing) <= now + lease.bounds[1] <= MAX_NS
    unbounded = lease.sql(sa.literal(epoch, sa.BigInteger), sa.literal(swing, sa.Float))
    with engine.connect() as connection:
        until = connection.execute(sa.select(sa.literal(now, sa.BigInteger) + unbounded)).scalar_one()
    assert isinstance(until, int)  # and no fraction


@pytest.mark.parametrize("option", ["ack_wait", "min_backoff"])
def test_a_wait_that_would_end_after_the_end_of_time_is_refused_by_name(option: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{option} must be at most 18250d, got {MAX_NS}$"):
        TableOptions.check(**{option: MAX_NS})


@given(lease_lengths, st.integers(0, 2**40), swings)
def test_the_sql_expression_says_what_the_rule_says(lease: LeaseLength, epoch: int, swing: float) -> None:
    expression = lease.sql(sa.literal(epoch, sa.BigInteger), sa.literal(swing, sa.Float))
    with engine.connect() as connection:
        by_sql = connection.execute(sa.select(expression)).scalar_one()
    low, high = lease.bounds
    assert min(max(by_sql, low), high) == lease.of(epoch, swing)


engine = sa.create_engine("sqlite://")
