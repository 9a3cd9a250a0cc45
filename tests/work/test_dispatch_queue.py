"""The dispatch queue: messages of a group that go back, room for claims, and turns of several tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waterclock._support import moments
from waterclock.work.flow.dispatch_queue import LONGEST_WAIT, DispatchQueue, Handling

FETCHER: Any = SimpleNamespace()
ANOTHER: Any = SimpleNamespace()


def message(position: int | None, max_attempts: int | None = None, of: Any = FETCHER) -> Handling:
    context = SimpleNamespace(options=SimpleNamespace(max_attempts=max_attempts))
    leased = SimpleNamespace(group_id="g", position=position)
    delivery: Any = SimpleNamespace(leased=leased, context=context)
    return Handling(delivery, of, 0)


def claimed(queue: DispatchQueue, *handlings: Handling) -> list[Handling]:
    """Bring in what a claim that begins now gives; say what is not to be handled."""
    return queue.add(FETCHER, handlings, moments.monotonic_ns())


def test_messages_behind_a_failed_one_wait_although_an_earlier_one_is_recorded_late() -> None:
    queue = DispatchQueue(2)
    first, fails, behind, late, after = map(message, range(5))
    assert claimed(queue, first, fails, behind) == []
    assert queue.next_now() is first
    queue.end(first, goes_on=True)
    assert queue.next_now() is fails
    assert queue.end(fails, goes_on=False) == [behind]
    queue.recorded([first])
    assert claimed(queue, late) == [late]
    queue.recorded([fails])
    assert claimed(queue, after) == []


def test_messages_behind_one_that_waited_too_long_wait_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = DispatchQueue(1)
    waits, late, after = map(message, range(3))
    assert claimed(queue, waits) == []
    began = moments.monotonic_ns()
    monkeypatch.setattr(moments, "monotonic_ns", lambda: began + 2 * LONGEST_WAIT)
    assert queue.take_back() == [waits]
    assert claimed(queue, late) == [late]
    queue.given_back([waits])
    monkeypatch.setattr(moments, "monotonic_ns", lambda: began + 3 * LONGEST_WAIT)
    assert claimed(queue, after) == []


def test_messages_behind_one_that_could_not_be_given_back_wait_until_it_is() -> None:
    queue = DispatchQueue(1)
    fails, behind, late, after = map(message, range(4))
    assert claimed(queue, fails, behind) == []
    assert queue.next_now() is fails
    assert queue.end(fails, goes_on=False) == [behind]
    queue.not_given_back([behind])
    queue.recorded([fails])
    assert claimed(queue, late) == [late]
    queue.given_back([behind])
    assert claimed(queue, after) == []


def test_messages_behind_a_failed_one_wait_for_its_record_although_a_later_one_was_given_back() -> None:
    queue = DispatchQueue(1)
    fails, late, later, after = map(message, range(4))
    assert claimed(queue, fails) == []
    assert queue.next_now() is fails
    assert queue.end(fails, goes_on=False) == []
    assert claimed(queue, late) == [late]
    queue.not_given_back([late])
    queue.given_back([late])
    assert claimed(queue, later) == [later]
    queue.recorded([fails])
    assert claimed(queue, after) == []


def test_only_a_caller_that_may_claim_ahead_gets_room_beyond_the_free_slots() -> None:
    queue = DispatchQueue(2)
    queue._mean = 1_000_000
    assert queue.reserve(FETCHER, 100, ahead=False) == 2
    queue.add(FETCHER, [], 0)
    assert queue.reserve(FETCHER, 100) == 96


def test_the_first_handler_tells_how_much_to_claim_ahead() -> None:
    queue = DispatchQueue(2)
    first = message(0)
    claimed(queue, first)
    assert queue.next_now() is first
    queue.end(first, goes_on=True)
    assert queue.reserve(FETCHER, 100) > 2


def test_with_max_attempts_the_next_message_of_a_group_keeps_the_slot_of_the_one_before_it() -> None:
    queue = DispatchQueue(2)
    first, second = (message(position, max_attempts=2) for position in range(2))
    assert claimed(queue, first, second) == []
    assert queue.next_now() is first
    queue.end(first, goes_on=True)
    assert queue.reserve(FETCHER, 100, ahead=False) == 1
    queue.recorded([first])
    assert queue.next_now() is second
    queue.end(second, goes_on=True)
    assert queue.reserve(FETCHER, 100, ahead=False) == 1


def test_with_max_attempts_a_message_starts_once_the_one_before_it_in_its_group_is_recorded() -> None:
    queue = DispatchQueue(2)
    first, second, third = (message(position, max_attempts=2) for position in range(3))
    assert claimed(queue, first, second, third) == []
    assert queue.next_now() is first
    queue.end(first, goes_on=True)
    assert queue.next_now() is None
    queue.recorded([first])
    assert queue.next_now() is second
    queue.end(second, goes_on=True)
    assert queue.close() == [third]
    queue.recorded([second])
    assert queue.next_now() is None


def test_messages_of_a_table_whose_first_claim_is_slow_alternate_with_many_that_were_claimed_before() -> None:
    queue = DispatchQueue(1)
    claimed(queue, *(message(None) for _ in range(4)))
    queue.add(ANOTHER, [message(None, of=ANOTHER) for _ in range(2)], 0)
    began: list[Any] = []
    while one := queue.next_now():
        began.append(one.fetcher)
        queue.end(one, goes_on=True)
    assert [fetcher is ANOTHER for fetcher in began] == [False, True, False, True, False, False]


def test_a_claim_that_waits_for_a_locked_table_keeps_no_room_from_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = DispatchQueue(2)
    assert queue.reserve(FETCHER, 100) == 2
    queue.release_slow_claims()
    assert queue.is_full
    began = moments.monotonic_ns()
    monkeypatch.setattr(moments, "monotonic_ns", lambda: began + 10**9)
    queue.release_slow_claims()
    assert queue.reserve(ANOTHER, 100) == 2
    queue.add(FETCHER, [], began)
    assert queue.is_full
    queue.add(ANOTHER, [], began)
    assert queue.reserve(ANOTHER, 100) == 2
