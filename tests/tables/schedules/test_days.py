from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import waterclock as wc
from waterclock.tables.model.days import DAY, DAYS_AHEAD, days_to_add, days_to_drop


@given(st.sets(st.integers(0, 60)), st.integers(0, 50 * DAY))
def test_after_adding_there_are_partitions_for_today_and_the_days_ahead(known: set[int], now: int) -> None:
    added = days_to_add(known, now)
    assert added == sorted(added)
    assert not known & set(added)
    assert all(day > max(known) for day in added if known)
    if not known or max(known) <= now // DAY + DAYS_AHEAD:
        assert max(known | set(added)) == now // DAY + DAYS_AHEAD


@given(st.sets(st.integers(0, 60)), st.integers(0, 50 * DAY), st.integers(0, 50 * DAY))
def test_a_day_is_dropped_when_its_last_moment_is_old_enough_and_not_before(
    known: set[int], now: int, purge_after: int
) -> None:
    dropped = set(days_to_drop(known, now, purge_after))
    for day in known:
        last_moment = (day + 1) * DAY - 1
        assert (day in dropped) == (last_moment < now - purge_after)
    assert days_to_drop(known, now, None) == []


def test_sqlite_says_that_it_has_no_partitions(tmp_path: Path) -> None:
    with (
        wc.connect(f"sqlite:///{tmp_path / 'a.db'}") as database,
        pytest.raises(wc.InvalidArgumentError, match=r"^purge_by must be 'rows' on SQLite, which has no partitions"),
    ):
        database.create_table("orders", purge_by="partition")
