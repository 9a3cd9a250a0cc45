from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from waterclock.batching.batch import Batch
from waterclock.demo.reconciliation import Reconciliation, count_astray
from waterclock.demo.worker import check_batch
from waterclock.errors import SchemaError
from waterclock.message import Message, Position
from waterclock.spark.writing.message_writer import POSITION_HEADER

BOOKS = Reconciliation(
    appended=10,
    before_start=3,
    batched=4,
    rejected=Counter(late=2, duplicate=1),
    astray=0,
    batches=2,
    acked=2,
    held_when_killed=1,
    delivered_again=1,
)


def test_books_in_which_every_message_is_accounted_for_balance() -> None:
    assert BOOKS.balances
    assert "It balances to the message." in BOOKS.lines()


@pytest.mark.parametrize(
    "wrong",
    [
        {"appended": 11},
        {"batched": 5},
        {"rejected": Counter(late=2)},
        {"astray": 1},
        {"acked": 1},
        {"held_when_killed": 0, "delivered_again": 0},
        {"delivered_again": 0},
    ],
)
def test_books_in_which_anything_is_missing_do_not_balance(wrong: dict[str, object]) -> None:
    books = replace(BOOKS, **wrong)  # type: ignore[arg-type]  # one field at a time
    assert not books.balances
    assert any("DOES NOT BALANCE" in line for line in books.lines())


def message(index: int, event_time: int = 0) -> Message:
    return Message("press-01", "load", event_time, position=Position(0, 0, index))


def batch(*messages: Message, reason: str = "timeout") -> Batch:
    return Batch("press-01", 0, 10, 20, reason, messages)  # type: ignore[arg-type]  # one of the reasons


def rejected(index: int) -> Message:
    return Message("press-01", "load", 0, headers={POSITION_HEADER: f"0:0:{index}"})


def test_a_message_in_one_batch_or_rejection_is_not_astray() -> None:
    expected = [Position(0, 0, index) for index in range(3)]
    assert count_astray(expected, [batch(message(0)), batch(message(1))], [rejected(2)]) == 0


def test_messages_that_are_missing_doubled_or_foreign_are_astray() -> None:
    expected = [Position(0, 0, index) for index in range(3)]
    assert count_astray(expected, [batch(message(0))], [rejected(2)]) == 1
    assert count_astray(expected, [batch(message(0), message(1)), batch(message(1))], [rejected(2)]) == 1
    assert count_astray(expected, [batch(message(0), message(1), message(7))], [rejected(2)]) == 1


def test_a_worker_takes_a_batch_whose_messages_lie_in_its_window() -> None:
    check_batch(batch(message(0, 0), message(1, 10)), "press-01")
    check_batch(batch(message(0, 0), message(1, 9), reason="conflict"), "press-01")


@pytest.mark.parametrize(
    ("wrong", "group"),
    [
        (batch(message(0, 11)), "press-01"),
        (batch(message(0, 10), reason="conflict"), "press-01"),
        (batch(message(0, -1)), "press-01"),
        (batch(), "press-01"),
        (batch(message(0, 0)), "press-02"),
    ],
)
def test_a_worker_refuses_a_batch_that_is_not_what_its_window_says(wrong: Batch, group: str) -> None:
    with pytest.raises(SchemaError, match=r"press-01@0"):
        check_batch(wrong, group)
