"""Messages of a group that go back: what a claim brings meanwhile from behind them in the group goes back, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waterclock._support import moments
from waterclock.work.flow.dispatch_queue import LONGEST_WAIT, Handling, Lanes

INTAKE: Any = SimpleNamespace()


def message(position: int, max_attempts: int | None = None) -> Handling:
    context = SimpleNamespace(options=SimpleNamespace(max_attempts=max_attempts))
    leased = SimpleNamespace(group_id="g", position=position)
    delivery: Any = SimpleNamespace(leased=leased, context=context)
    return Handling(delivery, INTAKE, 0)


def claimed(lanes: Lanes, *handlings: Handling) -> list[Handling]:
    """Bring in what a claim that begins now gives; say what is not to be handled."""
    return lanes.add(INTAKE, handlings, 0, moments.monotonic_ns())


def test_messages_behind_a_failed_one_wait_although_an_earlier_one_is_recorded_late() -> None:
    lanes = Lanes(2)
    first, fails, behind, late, after = map(message, range(5))
    assert claimed(lanes, first, fails, behind) == []
    assert lanes.next_now() is first
    lanes.end(first, goes_on=True)
    assert lanes.next_now() is fails
    assert lanes.end(fails, goes_on=False) == [behind]
    lanes.recorded([first])
    assert claimed(lanes, late) == [late]
    lanes.recorded([fails])
    assert claimed(lanes, after) == []


def test_messages_behind_one_that_waited_too_long_wait_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes(1)
    waits, late, after = map(message, range(3))
    assert claimed(lanes, waits) == []
    began = moments.monotonic_ns()
    monkeypatch.setattr(moments, "monotonic_ns", lambda: began + 2 * LONGEST_WAIT)
    assert lanes.take_back() == [waits]
    assert claimed(lanes, late) == [late]
    lanes.given_back([waits])
    monkeypatch.setattr(moments, "monotonic_ns", lambda: began + 3 * LONGEST_WAIT)
    assert claimed(lanes, after) == []


def test_messages_behind_one_that_could_not_be_given_back_wait_until_it_is() -> None:
    lanes = Lanes(1)
    fails, behind, late, after = map(message, range(4))
    assert claimed(lanes, fails, behind) == []
    assert lanes.next_now() is fails
    assert lanes.end(fails, goes_on=False) == [behind]
    lanes.not_given_back([behind])
    lanes.recorded([fails])
    assert claimed(lanes, late) == [late]
    lanes.given_back([behind])
    assert claimed(lanes, after) == []


def test_messages_behind_a_failed_one_wait_for_its_record_although_a_later_one_was_given_back() -> None:
    lanes = Lanes(1)
    fails, late, later, after = map(message, range(4))
    assert claimed(lanes, fails) == []
    assert lanes.next_now() is fails
    assert lanes.end(fails, goes_on=False) == []
    assert claimed(lanes, late) == [late]
    lanes.not_given_back([late])
    lanes.given_back([late])
    assert claimed(lanes, later) == [later]
    lanes.recorded([fails])
    assert claimed(lanes, after) == []


def test_only_a_caller_that_may_claim_ahead_gets_room_beyond_the_free_slots() -> None:
    lanes = Lanes(2)
    lanes._mean = 1_000_000
    assert lanes.reserve(100, ahead=False) == 2
    lanes.add(INTAKE, [], 2, 0)
    assert lanes.reserve(100) == 96


def test_with_max_attempts_the_next_message_of_a_group_keeps_the_slot_of_the_one_before_it() -> None:
    lanes = Lanes(2)
    first, second = (message(position, max_attempts=2) for position in range(2))
    assert claimed(lanes, first, second) == []
    assert lanes.next_now() is first
    lanes.end(first, goes_on=True)
    assert lanes.reserve(100, ahead=False) == 1
    lanes.recorded([first])
    assert lanes.next_now() is second
    lanes.end(second, goes_on=True)
    assert lanes.reserve(100, ahead=False) == 1


def test_with_max_attempts_a_message_starts_once_the_one_before_it_in_its_group_is_recorded() -> None:
    lanes = Lanes(2)
    first, second, third = (message(position, max_attempts=2) for position in range(3))
    assert claimed(lanes, first, second, third) == []
    assert lanes.next_now() is first
    lanes.end(first, goes_on=True)
    assert lanes.next_now() is None
    lanes.recorded([first])
    assert lanes.next_now() is second
    lanes.end(second, goes_on=True)
    assert lanes.close() == [third]
    lanes.recorded([second])
    assert lanes.next_now() is None
