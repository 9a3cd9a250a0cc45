from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace

import pytest

from waterclock._support import moments
from waterclock.tables.databases.claiming_rows import (
    LONG_WALK,
    LONGEST_PAUSE,
    SLOW_LOOK,
    ClaimCursor,
    Walks,
)
from waterclock.tables.model.claims.bounds import LOOK_BACK_SHARE
from waterclock.tables.model.claims.claim import LOOK_BACK_EVERY, Claimed


class Clock(moments.Moments):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_ns(self) -> int:
        return round(self.now * 1_000_000_000)


@pytest.fixture
def clock() -> Generator[Clock]:
    with moments.replaced(made := Clock()):
        yield made


def claimed(priority: int, time_next: int) -> Claimed:
    return Claimed(SimpleNamespace(priority=priority, time_next=time_next), 0)


def test_the_cursor_is_at_the_end_of_the_last_claim_in_each_priority() -> None:
    marks = ClaimCursor()
    marks.advance([claimed(9, 5), claimed(9, 7), claimed(0, 3)])
    assert marks.now() == {9: 7, 0: 3}
    marks.advance([claimed(0, 4)])
    assert marks.now() == {9: 7, 0: 4}
    marks.forget()
    assert marks.now() == {}


def test_marks_are_given_up_after_a_second_even_where_claims_continue(clock: Clock) -> None:
    marks = ClaimCursor()
    for _ in range(3):
        marks.advance([claimed(0, 5)])
        clock.now += LOOK_BACK_EVERY / 2
    assert marks.now() == {}
    marks.advance([claimed(0, 8)])
    assert marks.now() == {0: 8}


@pytest.mark.parametrize(
    ("took", "every"),
    [
        (0.001, LOOK_BACK_EVERY),
        (0.5, 0.5 * LOOK_BACK_SHARE),
        (600.0, LONGEST_PAUSE),
    ],
)
def test_a_look_from_the_first_message_that_takes_long_comes_less_often(
    clock: Clock, took: float, every: float
) -> None:
    marks = ClaimCursor()
    clock.now += 100  # no claim for a while
    assert marks.now() == {}
    clock.now += took
    marks.advance([claimed(0, 5)])
    clock.now += every - took - 0.0001
    assert marks.now() == {0: 5}
    clock.now += 0.0002
    assert marks.now() == {}


def test_a_look_that_became_quick_again_comes_every_second_again(clock: Clock) -> None:
    marks = ClaimCursor()
    for took in (1.0, 0.001):
        marks.forget()
        assert marks.now() == {}
        clock.now += took
        marks.advance([claimed(0, 5)])
    clock.now += LOOK_BACK_EVERY
    assert marks.now() == {}


def test_a_claim_that_began_at_a_mark_is_not_taken_for_a_look_from_the_first_message(clock: Clock) -> None:
    marks = ClaimCursor()
    marks.now()
    marks.advance([claimed(0, 5)])
    clock.now += LOOK_BACK_EVERY / 2
    assert marks.now() == {0: 5}
    marks.forget()  # another thread gave a message back meanwhile
    marks.advance([claimed(0, 6)])
    clock.now += LOOK_BACK_EVERY
    assert marks.now() == {}


def look(marks: ClaimCursor, clock: Clock, cursor: float, back: float, *found: Claimed) -> None:
    """Claim from the cursor, if it is set, and then from the first message on: too few."""
    begin = marks.now()
    clock.now += cursor
    if begin:
        marks.look_back()
    clock.now += back
    marks.looked_back(begin, found)


def test_the_cursor_stays_after_a_slow_look_back_that_got_too_few(clock: Clock) -> None:
    marks = ClaimCursor()
    look(marks, clock, 0, SLOW_LOOK * 2, claimed(0, 5))
    assert marks.now() == {0: 5}
    look(marks, clock, 0.001, SLOW_LOOK * 2)
    assert marks.now() == {0: 5}
    look(marks, clock, 0.001, SLOW_LOOK * 2, claimed(0, 3))  # committed late
    assert (marks.now(), marks.had_enough) == ({0: 3}, False)


@pytest.mark.parametrize("took", [(0.001, SLOW_LOOK / 2), (SLOW_LOOK * 2, SLOW_LOOK * 3)])
def test_the_cursor_goes_after_a_look_back_that_costs_little_more_than_it(
    clock: Clock, took: tuple[float, float]
) -> None:
    marks = ClaimCursor()
    marks.advance([claimed(0, 5)])
    look(marks, clock, *took, claimed(0, 6))
    assert not marks.is_set


def test_a_cursor_that_another_thread_forgot_meanwhile_does_not_come_back(clock: Clock) -> None:
    marks = ClaimCursor()
    marks.advance([claimed(0, 5)])
    begin = marks.now()
    marks.look_back()
    clock.now += SLOW_LOOK * 2
    marks.forget()
    marks.looked_back(begin, [claimed(0, 6)])
    assert not marks.is_set


def test_the_cursor_is_too_old_a_second_after_the_last_look_back(clock: Clock) -> None:
    marks = ClaimCursor()
    look(marks, clock, 0, SLOW_LOOK * 2, claimed(0, 5))
    clock.now += LOOK_BACK_EVERY / 2
    look(marks, clock, 0.001, SLOW_LOOK * 2)
    clock.now += LOOK_BACK_EVERY - SLOW_LOOK * 3
    assert marks.now() == {0: 5}
    clock.now += SLOW_LOOK * 2
    assert marks.now() == {}


def walks_after(*walks: float) -> Walks:
    made = Walks()
    for seconds in (9.0, *walks):  # the first of each is not counted
        made.walked(seconds)
    made.asked(9.0)
    return made


def test_a_claim_asks_first_if_the_last_one_searched_long_without_success() -> None:
    assert not walks_after().should_ask()
    assert not walks_after(LONG_WALK / 2).should_ask()
    assert walks_after(LONG_WALK * 2).should_ask()
    assert not walks_after(LONG_WALK * 2, LONG_WALK / 2).should_ask()


def test_a_claim_asks_no_more_where_asking_takes_long_but_tries_it_again() -> None:
    walks = walks_after(0.010)
    walks.asked(0.006)
    assert not walks.should_ask()
    for _ in range(20):
        walks.walked(0.010)
    assert walks.should_ask()


def test_claims_go_on_asking_after_one_check_took_long_by_chance() -> None:
    walks = walks_after(0.010)
    for seconds in (0.001, 0.1):
        walks.asked(seconds)
    assert walks.should_ask()
    for _ in range(4):  # now it always takes long
        walks.asked(0.1)
    assert not walks.should_ask()


def test_one_long_walk_does_not_make_claims_ask_forever() -> None:
    walks = walks_after(0.1)
    for _ in range(200):
        walks.asked(0.001)
    assert not walks.should_ask()


def test_a_claim_does_not_ask_after_one_that_found_something() -> None:
    walks = walks_after(0.1)
    walks.found()
    assert not walks.should_ask()


def test_a_claim_that_asked_says_nothing_about_how_long_one_takes_that_did_not() -> None:
    walks = walks_after(0.1)
    walks.found()
    walks.walked(0.1)
    walks.asked(0.04)
    walks.walked(0.05)
    assert walks.should_ask()
