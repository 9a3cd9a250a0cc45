"""A bound advances to what a look saw once nothing can be committed below it any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waterclock.tables.databases.table_dialect import CHANGED_PLACES
from waterclock.tables.messages.claiming.group_levels import note_look
from waterclock.tables.model.claims.bounds import (
    CLOCK_STEP,
    DISTRUST_FOR,
    LOOK_BACK_AT_LEAST,
    LOOK_BACK_SHARE,
    MOST_OWNERS,
    MOST_PRIORITIES,
    SAVE_EVERY,
    SAVED_FOR,
    UNASSIGNED,
    UNUSED_FOR,
    DrawnSeqs,
    GroupBounds,
    GroupSearch,
    ProvenBound,
    SavedBounds,
    Snapshot,
)
from waterclock.tables.model.claims.claim import FIRST_SEQ, Reached
from waterclock.time import MIN_NS


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.moments.monotonic", lambda: now[0])
    return now


NOW = 1_000


def look(bound: ProvenBound, end: int, oldest: int, mark: int | None = None) -> int:
    bound.found_nothing(bound.begin(), end, Snapshot(NOW, oldest, mark))
    return bound.value


def prove(bound: ProvenBound, end: int) -> None:
    """Advance a bound by the three searches that it needs."""
    look(bound, end, 1)
    look(bound, end, 1, mark=1)
    assert look(bound, end, 1) == end


def test_one_search_proves_nothing() -> None:
    bound = ProvenBound(0)
    assert look(bound, 10, oldest=5, mark=5) == 0
    assert bound.needs_mark


def test_a_bound_advances_once_all_have_ended_that_were_in_progress() -> None:
    bound = ProvenBound(0)
    look(bound, 10, oldest=3)
    look(bound, 20, oldest=3, mark=7)
    assert not bound.needs_mark
    assert look(bound, 20, oldest=6, mark=9) == 0
    assert look(bound, 30, oldest=7, mark=9) == 10


def test_a_message_that_was_committed_late_holds_it_up() -> None:
    bound = ProvenBound(0)
    look(bound, 10, oldest=3)
    look(bound, 10, oldest=3, mark=7)
    assert look(bound, 4, oldest=7) == 4


def test_a_bound_that_cannot_advance_needs_no_id_of_a_transaction() -> None:
    bound = ProvenBound(0, 10)
    look(bound, 10, oldest=3)
    assert not bound.needs_mark
    look(bound, 11, oldest=3)
    assert bound.needs_mark


def test_a_search_that_began_before_another_ended_does_not_prove_it() -> None:
    bound = ProvenBound(0)
    before = bound.begin()
    look(bound, 10, oldest=3)
    bound.found_nothing(before, 10, Snapshot(NOW, 3, 7))
    assert bound.needs_mark


def test_a_bound_never_goes_back_by_itself() -> None:
    bound = ProvenBound(0)
    prove(bound, 30)
    look(bound, 5, 1)
    look(bound, 5, 1, mark=1)
    assert look(bound, 5, 1) == 30


def test_a_look_back_that_finds_something_drops_the_bound(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    time[0] += LOOK_BACK_AT_LEAST
    assert look(bound, 5, 1) == 0


def test_one_thread_looks_back(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    time[0] += LOOK_BACK_AT_LEAST
    assert [bound.begin().low, bound.begin().low] == [0, 10]


def test_a_slow_look_back_is_compared_with_the_bound_at_its_beginning(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    time[0] += LOOK_BACK_AT_LEAST
    slow = bound.begin()
    prove(bound, 20)
    bound.found_nothing(slow, 15, Snapshot(NOW, 1, None))
    assert bound.value == 20


def test_a_bound_below_which_something_was_found_is_not_used_for_a_while(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    time[0] += LOOK_BACK_AT_LEAST
    look(bound, 5, 1)
    look(bound, 30, 1)
    look(bound, 30, 1, mark=1)
    assert look(bound, 40, 1) == 0
    time[0] += DISTRUST_FOR
    prove(bound, 50)


@pytest.mark.parametrize(("now", "first", "is_distrusted"), [(4 * CLOCK_STEP, 5, True), (2 * CLOCK_STEP, None, False)])
def test_a_bound_of_times_is_not_used_for_a_while_unless_only_the_clock_was_set_back(
    time: list[float], now: int, first: int | None, is_distrusted: bool
) -> None:
    bounds = GroupBounds()
    bounds.start({0: 3 * CLOCK_STEP}, 0)

    def search(now: int, first: int | None = None, mark: int | None = None) -> int:
        found = SimpleNamespace(now=now, oldest=1, mark=mark, firsts=[first], of_unassigned=None)
        bounds.note(bounds.begin(UNASSIGNED), found)
        return bounds.of_unassigned()[0].value

    time[0] += LOOK_BACK_AT_LEAST
    assert search(now, first) == MIN_NS
    for mark in (None, 1, None):
        search(9 * CLOCK_STEP, mark=mark)
    assert (bounds.of_unassigned()[0].value == MIN_NS) == is_distrusted


def test_bounds_are_written_only_if_they_changed(time: list[float]) -> None:
    saved, bound = SavedBounds(None), ProvenBound(FIRST_SEQ)
    assert not saved.is_due()
    time[0] += SAVE_EVERY
    assert saved.is_due()
    assert saved.changed(bound, {}) is None
    assert not saved.is_due()
    bound.value, bound.checked = -7, NOW
    due = {3: ProvenBound(FIRST_SEQ, 5, NOW - 1)}
    text = saved.changed(bound, due)
    assert text is not None
    saved.written(text)
    assert saved.changed(bound, due) is None
    reached = Reached(text, NOW)
    assert reached.routed.value == -7
    assert {priority: one.value for priority, one in reached.groups.of_unassigned().items()} == {3: 5}


@pytest.mark.parametrize("now", [NOW - 2, NOW + SAVED_FOR])
def test_a_new_process_ignores_bounds_that_nobody_confirmed_of_late(now: int) -> None:
    bound, due = ProvenBound(FIRST_SEQ, -7, NOW), {3: ProvenBound(FIRST_SEQ, 5, NOW - 1)}
    reached = Reached(SavedBounds(None).changed(bound, due), now)
    assert reached.routed.value == FIRST_SEQ
    assert reached.groups.of_unassigned() == {}


def test_a_search_from_the_first_key_confirms_the_bound(time: list[float]) -> None:
    bound = ProvenBound(0, 10, NOW - 5)
    look(bound, 10, 1)
    assert bound.checked == NOW - 5
    time[0] += LOOK_BACK_AT_LEAST
    look(bound, 10, 1)
    assert bound.checked == NOW


def test_a_search_that_began_above_the_bound_counts_for_nothing(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    above = bound.begin()
    time[0] += LOOK_BACK_AT_LEAST
    look(bound, 5, 1)
    bound.found_nothing(above, 30, Snapshot(NOW, 3, None))
    assert bound.value == 0


def test_looks_back_that_take_long_come_less_often(time: list[float]) -> None:
    bound = ProvenBound(0)
    prove(bound, 10)
    time[0] += LOOK_BACK_AT_LEAST
    slow = bound.begin()
    time[0] += 10.0
    bound.found_nothing(slow, 20, Snapshot(NOW, 1, None))
    time[0] += LOOK_BACK_AT_LEAST
    assert bound.begin().low == 10
    time[0] += LOOK_BACK_SHARE * 10.0
    assert bound.begin().low == 0


def test_bounds_of_consumers_are_forgotten_in_a_process_with_many() -> None:
    bounds = GroupBounds()
    found = SimpleNamespace(now=NOW, oldest=1, mark=None, firsts=None, own_firsts=None, of_unassigned=None, of_mine=7)
    for number in range(3 * MOST_OWNERS):
        bounds.note(GroupSearch(f"c{number}", [], [], []), found)
    assert len(bounds._bounds) <= MOST_OWNERS


def note_priority(bounds: GroupBounds, priority: int, *finds: int) -> None:
    """Note a search that finds a priority without a bound, and something of these that have one."""
    search = bounds.begin(UNASSIGNED)
    firsts = [NOW if one in finds else None for one in search.priorities]
    bounds.note(search, SimpleNamespace(now=NOW, oldest=1, mark=None, firsts=firsts, of_unassigned=priority))


def test_a_further_priority_takes_the_place_of_one_of_which_nothing_is_found(time: list[float]) -> None:
    bounds = GroupBounds()
    for priority in range(MOST_PRIORITIES):
        note_priority(bounds, priority)
    note_priority(bounds, 77)
    assert sorted(bounds.of_unassigned()) == list(range(MOST_PRIORITIES))
    time[0] += UNUSED_FOR
    note_priority(bounds, 77, *range(1, MOST_PRIORITIES))
    time[0] += 1.0
    note_priority(bounds, 77)
    assert sorted(bounds.of_unassigned()) == [*range(1, MOST_PRIORITIES), 77]


def looks(reached: Reached, *, newest: int | None, first_place: int | None = None) -> int:
    """Look for new messages until the bound has advanced; return it."""
    context: Any = SimpleNamespace(reached=reached)
    for _ in range(3):
        found = SimpleNamespace(now=NOW, oldest=9, mark=9, newest=newest, first_place=first_place)
        note_look(context, found, reached.routed.begin())
    return reached.routed.value


def test_a_message_that_plain_sql_changed_does_not_carry_the_bound_past_those_to_come() -> None:
    assert looks(Reached(), newest=7, first_place=CHANGED_PLACES + 3) == 8


def test_the_bound_stays_once_all_messages_are_purged(time: list[float]) -> None:
    reached = Reached()
    assert looks(reached, newest=7) == 8
    time[0] += LOOK_BACK_AT_LEAST
    assert looks(reached, newest=None) == 8
    time[0] += LOOK_BACK_AT_LEAST
    assert looks(reached, newest=9) == 10


def test_a_bound_stays_behind_numbers_that_were_just_drawn() -> None:
    drawn = DrawnSeqs()
    drawn.note(5, 10.0)
    drawn.note(9, 10.6)
    assert [drawn.before(at) for at in (10.9, 11.1, 11.7)] == [None, 5, 9]
    drawn.note(3, 11.8)  # after a TRUNCATE
    assert [drawn.before(at) for at in (11.9, 12.9)] == [None, 3]
