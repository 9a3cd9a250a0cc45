"""How many groups one check reads, and when the next is due."""

from __future__ import annotations

import pytest

from waterclock._support import moments
from waterclock.tables.model.timing import sweeps as timing
from waterclock.tables.model.timing.sweeps import LARGEST_CHUNK, Sweeps

MS = 1_000_000
TIMES = {
    "_CHUNK_TAKES": 20 * MS,
    "_VISIT_TAKES": 250 * MS,
    "_FIRST_TAKES": 50 * MS,
}  # those that `groups_are_checked_at_once` replaces


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    for name, value in TIMES.items():
        monkeypatch.setattr(timing, name, value)
    return Sweeps()


def check(sweeps: Sweeps, took: int, last: str | None = "g", *, round_trips: int = 0) -> None:
    assert sweeps.begin()
    sweeps.end(last, took + round_trips, took, 1, 30_000 * MS)


def test_the_next_check_reads_as_many_groups_as_take_20_ms(sweeps: Sweeps) -> None:
    sweeps.chunk = 100
    check(sweeps, 40 * MS)
    assert sweeps.chunk == 50
    check(sweeps, 10 * MS)
    assert sweeps.chunk == 100


@pytest.mark.parametrize(("chunk", "took", "following"), [(3, 500 * MS, 1), (1500, 0, LARGEST_CHUNK), (10, 0, 40)])
def test_a_check_reads_at_least_one_group_and_at_most_four_times_as_many_as_the_last(
    sweeps: Sweeps, chunk: int, took: int, following: int
) -> None:
    sweeps.chunk = chunk
    check(sweeps, took)
    assert sweeps.chunk == following


def test_round_trips_do_not_make_the_next_check_smaller(sweeps: Sweeps) -> None:
    sweeps.chunk = 1
    for _ in range(3):
        check(sweeps, 1 * MS, round_trips=60 * MS)
        assert sweeps.goes_on
    assert sweeps.chunk == 64


def test_chunks_do_not_follow_at_once_after_250_ms_of_round_trips(sweeps: Sweeps) -> None:
    sweeps._first_left = 0
    check(sweeps, 0, round_trips=249 * MS)
    assert sweeps.goes_on
    check(sweeps, 0, round_trips=1 * MS)
    assert not sweeps.goes_on


@pytest.mark.parametrize(("searched", "round_trips", "pause"), [(20, 0, 2000), (20, 300, 3200)])
def test_checks_take_a_fiftieth_of_all_processes_and_a_tenth_of_their_own(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, searched: int, round_trips: int, pause: int
) -> None:
    monkeypatch.setattr(moments, "monotonic_ns", lambda: 5 * MS)
    assert sweeps.begin()
    sweeps.end("g", (searched + round_trips) * MS, searched * MS, 2, 30_000 * MS)
    assert sweeps.due_at == (5 + pause) * MS


def test_a_round_through_all_messages_begins_with_one_group(sweeps: Sweeps) -> None:
    sweeps.chunk = LARGEST_CHUNK
    sweeps.begin_round(whole=False)
    assert sweeps.chunk == LARGEST_CHUNK
    sweeps.begin_round(whole=True)
    assert sweeps.chunk == 1


def test_chunks_follow_at_once_until_they_take_20_ms_together(sweeps: Sweeps) -> None:
    sweeps.due_at = 0
    sweeps._first_left = 0
    for took, goes_on in ((1 * MS, True), (18 * MS, True), (2 * MS, False), (30 * MS, False)):
        sweeps.due_at = 0
        check(sweeps, took)
        assert sweeps.goes_on == goes_on
        assert sweeps.is_due(idle=False) == goes_on
    check(sweeps, 1 * MS, last=None)
    assert not sweeps.goes_on


def test_an_idle_process_that_has_just_begun_checks_for_50_ms_or_all_groups(sweeps: Sweeps) -> None:
    for took in (20 * MS, 20 * MS, 20 * MS):
        assert sweeps.is_due(idle=True)
        assert not sweeps.is_due(idle=False)
        check(sweeps, took)
    assert not sweeps.is_due(idle=True)
    few = Sweeps()
    check(few, MS, last=None)
    assert not few.is_due(idle=True)
