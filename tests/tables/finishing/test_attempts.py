"""The history of a message's failed attempts, and the groups of failures."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.attempts import MOST_KEPT, MOST_TEXT, Attempt, read_attempts, with_attempt

MakeTable = Callable[..., MessageTable]


def fail(table: MessageTable, *errors: str, consumer: str | None = None) -> None:
    for error in errors:
        [delivery] = table.receive(1, consumer=consumer)
        delivery.nack("0s", error=error)


def errors_of(table: MessageTable, message_id: int = 1) -> list[tuple[int, str]]:
    return [(each.epoch, each.error) for each in table.explain(message_id).attempts]


def test_each_failed_attempt_is_kept_with_its_consumer_claim_and_error(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("tea")
    assert orders.explain(1).attempts == []
    before = clock.now
    fail(orders, "ValueError: no kettle", consumer="ada")
    [delivery] = orders.receive()
    [attempt] = delivery.attempts
    assert (attempt.epoch, attempt.consumer, attempt.outcome) == (1, "ada", "failed")
    assert (attempt.error, attempt.error_class) == ("ValueError: no kettle", "ValueError")
    assert attempt.duration >= 0
    assert attempt.claimed_at == before - attempt.duration  # the clock stands still
    assert orders.explain(1).attempts == [attempt]


def test_only_the_last_attempts_are_kept(make_table: MakeTable) -> None:
    table = make_table(attempts_kept=2)
    table.put("tea")
    fail(table, "one", "two", "three")
    assert errors_of(table) == [(2, "two"), (3, "three")]


def test_a_table_that_keeps_no_attempts_still_keeps_the_last_error(make_table: MakeTable) -> None:
    table = make_table(attempts_kept=0)
    table.put("tea")
    fail(table, "one", "two")
    assert errors_of(table) == []
    [group] = table.failures()
    assert (group.error, group.first) == ("two", None)


def test_a_change_of_attempts_kept_holds_from_the_next_failure_on(orders: MessageTable) -> None:
    orders.put("tea")
    fail(orders, "one", "two", "three")
    orders.alter(attempts_kept=1)
    assert len(errors_of(orders)) == 3
    fail(orders, "four")
    assert errors_of(orders) == [(4, "four")]


@pytest.mark.one_database
@pytest.mark.parametrize("kept", [-1, MOST_KEPT + 1, True, "5", None, 1.0])
def test_attempts_kept_must_be_a_count(make_table: MakeTable, kept: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^attempts_kept must be an integer from 0 to 100, got"):
        make_table(attempts_kept=kept)


def test_an_attempt_without_an_error_adds_nothing(orders: MessageTable) -> None:
    orders.put("tea")
    fail(orders, "one")
    orders.nack(orders.receive(), "0s")
    [delivery] = orders.receive()
    delivery.nack("0s")
    [delivery] = orders.receive()
    delivery.snooze("0s")
    assert errors_of(orders) == [(1, "one")]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_attempts_move_to_the_dead_letters_and_back(
    make_table: MakeTable, database: Database, groups: str | None
) -> None:
    table = make_table(groups=groups, max_attempts=2)
    table.put("tea", group="g" if groups else None)
    fail(table, "one", "two")
    assert table.receive() == []
    assert errors_of(table) == [(1, "one"), (2, "two")]
    [dead] = database.table("orders_dead").receive()
    assert [each.error for each in dead.attempts] == ["one", "two"]
    dead.nack("0s")
    assert table.redrive() == 1
    assert errors_of(table) == [(1, "one"), (2, "two")]


def test_a_message_that_is_given_up_has_that_as_its_last_attempt(make_table: MakeTable) -> None:
    table = make_table(dead_letter="buried")
    table.put("tea")
    fail(table, "one")
    [delivery] = table.receive(consumer="ada")
    delivery.dead_letter("no such customer")
    attempts = table.explain(1).attempts
    assert [(each.outcome, each.error) for each in attempts] == [("failed", "one"), ("dead_letter", "no such customer")]


def test_a_lost_lease_writes_no_attempt(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [lost] = orders.receive()
    clock.move("1h")
    [owner] = orders.receive()
    with pytest.raises(Exception, match=r"its lease until .* was lost"):
        lost.nack(error="too late")
    assert owner.attempts == []
    owner.nack("0s", error="in time")
    assert errors_of(orders) == [(2, "in time")]


@pytest.mark.both_servers
def test_long_and_hostile_errors_are_kept_as_they_are_up_to_the_limit(orders: MessageTable) -> None:
    orders.put("tea")
    hostile = "\x1b[31m<script>\u2028'\"\\ \U0001f375"
    fail(orders, hostile, "x" * 10 * MOST_TEXT)
    (_, first), (_, second) = errors_of(orders)
    assert first == hostile
    assert second == "x" * (MOST_TEXT - 1) + "…"


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", "[1]", "[[1,2]]", '[["1",0,0,null,"failed","x"]]', "[" * 100_000, "null", "3"]
)
def test_plain_sql_in_the_history_stops_nothing(orders: MessageTable, database: Database, text: str) -> None:
    orders.put("tea")
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET failed_attempts = :text"), {"text": text})
    assert orders.explain(1).attempts == []
    fail(orders, "one")
    assert errors_of(orders) == [(1, "one")]


def test_history_is_readable_by_sql(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    fail(orders, "no kettle", consumer="ada")
    with database.backend.snapshot() as connection:
        [[epoch, _, _, consumer, outcome, error]] = json.loads(
            connection.execute(sa.text("SELECT failed_attempts FROM orders")).scalar_one()
        )
    assert (epoch, consumer, outcome, error) == (1, "ada", "failed", "no kettle")


def test_attempts_are_parsed_as_they_were_written() -> None:
    first = Attempt(1, 10, 2, None, "failed", "a: b")
    second = Attempt(2, 20, 3, "ada", "dead_letter", 'it\'s "over"\x00')
    text = with_attempt(with_attempt(None, first, 5), second, 5)
    assert read_attempts(text) == [first, second]
    assert second.error_class is None
    assert read_attempts(None) == []


def test_failures_are_grouped_by_error_over_the_table_and_its_dead_letters(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(max_attempts=2)
    table.put_many([{"payload": "tea"}] * 5)
    began = clock.now
    for delivery in table.receive(5):
        kind = "ValueError: order 17 has no cup" if delivery.id == 5 else f"TimeoutError: no answer in {delivery.id} s"
        delivery.nack("0s", error=kind)
        clock.move("1s")
    [again] = table.receive(1)
    again.nack("0s", error="TimeoutError: no answer in 99.5 s")  # and dies of it
    timeout, value = table.failures()
    assert (timeout.error, timeout.count) == ("TimeoutError: no answer in <number> s", 4)
    assert sorted(timeout.ids) == [2, 3, 4]
    assert (timeout.first, timeout.last) == (began + 10**9, began + 5 * 10**9)
    assert (value.error, value.count, value.ids) == ("ValueError: order <number> has no cup", 1, [5])
    assert table.failures(limit=1) == [timeout]
    table.ack([2, 3, 4, 5])
    [left] = table.failures()
    assert (left.count, left.ids) == (1, [again.id])


def test_a_table_without_failures_has_no_groups(orders: MessageTable) -> None:
    orders.put("tea")
    assert orders.failures() == []
    orders.receive()
    assert orders.failures() == []
