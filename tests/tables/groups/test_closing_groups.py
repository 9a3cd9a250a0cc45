"""`put(closes_group=True)`: a producer ends an exclusive group with its last message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.groups import routing
from waterclock.tables.message_table import MessageTable


def close(table: MessageTable, name: str) -> None:
    table.put(name, group=name[0], closes_group=True)


def owners(table: MessageTable) -> dict[str | None, str | None]:
    return {info.group: info.owner for info in table.groups.list()}


def test_a_group_without_further_messages_ends_with_the_message_that_closes_it(exclusive: MessageTable) -> None:
    put(exclusive, "a1")
    close(exclusive, "a2")
    first, last = exclusive.receive(2, consumer="x")
    first.ack()
    assert owners(exclusive) == {"a": "x"}
    last.ack()
    assert owners(exclusive) == {}
    put(exclusive, "a3")
    [again] = exclusive.receive(consumer="y")
    assert (again.payload, again.first_for_consumer) == ("a3", True)


def test_messages_behind_the_closing_one_go_to_another_consumer(exclusive: MessageTable) -> None:
    close(exclusive, "a1")
    put(exclusive, "a2")
    [last] = exclusive.receive(1, consumer="x")
    assert exclusive.receive(consumer="y") == []
    last.ack()
    assert names(exclusive.receive(consumer="y")) == ["a2"]


def test_messages_that_the_consumer_has_already_stay_with_it_until_they_are_acked(exclusive: MessageTable) -> None:
    close(exclusive, "a1")
    put(exclusive, "a2")
    last, behind = exclusive.receive(2, consumer="x")
    put(exclusive, "a3")
    last.ack()
    assert exclusive.receive(consumer="x") == []
    assert exclusive.receive(consumer="y") == []
    behind.ack()
    assert names(exclusive.receive(consumer="y")) == ["a3"]


def test_the_group_moves_after_a_lease_ends_behind_the_closing_message(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    close(exclusive, "a1")
    put(exclusive, "a2")
    last, _ = exclusive.receive(2, consumer="x")
    last.ack()
    clock.move("31s")
    assert names(exclusive.receive(consumer="y")) == ["a2"]


def test_a_group_may_be_closed_several_times(exclusive: MessageTable) -> None:
    for name in ("a1", "a2", "a3"):
        close(exclusive, name)
    put(exclusive, "a4")
    for consumer in ("x", "y", "z", "w"):
        [delivery] = exclusive.receive(1, consumer=consumer)
        assert delivery.first_for_consumer
        delivery.ack()
    assert owners(exclusive) == {"a": "w"}


def test_a_closed_group_is_new_to_the_consumer_that_had_it(exclusive: MessageTable) -> None:
    close(exclusive, "a1")
    put(exclusive, "a2")
    exclusive.ack(exclusive.receive(1, consumer="x"))
    [delivery] = exclusive.receive(1, consumer="x")
    assert delivery.first_for_consumer


def test_a_closing_message_that_is_acked_before_earlier_ones_closes_the_group_after_them(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="exclusive", ack_order="lenient")
    put(table, "a1")
    close(table, "a2")
    first, last = table.receive(2, consumer="x")
    last.ack()
    assert owners(table) == {"a": "x"}
    first.ack()
    assert owners(table) == {}


def test_a_closing_message_that_becomes_a_dead_letter_closes_the_group(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="exclusive", max_attempts=1)
    close(table, "a1")
    put(table, "a2")
    [delivery] = table.receive(1, consumer="x")
    delivery.nack()
    assert names(table.receive(consumer="y")) == ["a2"]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_cancelled_closing_message_closes_the_group(exclusive: MessageTable, *, is_seen: bool) -> None:
    put(exclusive, "a1")
    first = exclusive.receive(1, consumer="x")
    [closing, _] = exclusive.put_many([{"payload": n, "group": "a", "closes_group": n == "a2"} for n in ("a2", "a3")])
    if is_seen:
        exclusive.receive(1, consumer="z")
    assert exclusive.cancel(closing) == 1
    exclusive.receive(1, consumer="z")
    assert owners(exclusive) == {"a": "x"}
    exclusive.ack(first)
    exclusive.purge()
    assert names(exclusive.receive(consumer="y")) == ["a3"]


def test_an_expired_closing_message_closes_the_group_when_its_consumer_claims(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1")
    exclusive.ack(exclusive.receive(1, consumer="x"))
    exclusive.put("a2", group="a", closes_group=True, expires_at=clock.now + 10)
    exclusive.receive(1, consumer="z")
    clock.move("1s")
    assert exclusive.receive(consumer="x") == []
    assert owners(exclusive) == {}


@pytest.mark.parametrize("how", ["delete", "purge", "skip_head"])
def test_a_removed_closing_message_closes_the_group(
    exclusive: MessageTable, clock: MovableClock, database: Database, how: str
) -> None:
    put(exclusive, "a1")
    exclusive.ack(exclusive.receive(1, consumer="x"))
    close(exclusive, "a2")
    exclusive.receive(1, consumer="z")
    if how == "delete":
        with database.backend.engine.begin() as plain:
            plain.execute(sa.text("DELETE FROM orders WHERE time_acked IS NULL"))
    else:
        getattr(exclusive.groups, how)("a")
    for _ in range(2):
        clock.move("20s")
        exclusive.receive(1, consumer="x")
    assert owners(exclusive) == {}


def test_a_nack_of_the_closing_message_leaves_the_group_with_its_consumer(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    close(exclusive, "a1")
    [delivery] = exclusive.receive(consumer="x")
    delivery.nack(0)
    clock.move("1s")
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a1"]


def test_a_pinned_group_stays_with_its_consumer(exclusive: MessageTable) -> None:
    close(exclusive, "a1")
    put(exclusive, "a2")
    exclusive.groups.pin("a", "x")
    exclusive.ack(exclusive.receive(1, consumer="x"))
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a2"]


def test_a_group_may_be_closed_with_plain_sql(exclusive: MessageTable, database: Database) -> None:
    insert = """INSERT INTO orders (id, message, group_id, closes_group, time_next)
        VALUES (:id, :message, 'a', :closes, 0)"""
    with database.backend.engine.begin() as plain:
        for number, closes in ((1, 1), (2, 0)):
            plain.execute(sa.text(insert), {"id": number, "message": f"a{number}", "closes": closes})
    exclusive.receive(1, consumer="x")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET time_acked = 1, time_next = NULL WHERE id = 1"))
    assert names(exclusive.receive(consumer="y")) == ["a2"]


def test_messages_put_together_close_their_groups(exclusive: MessageTable) -> None:
    exclusive.put_many({"payload": "x", "group": group, "closes_group": n == 2} for n in (1, 2) for group in "abc")
    exclusive.ack(exclusive.receive(10, consumer="x"))
    assert owners(exclusive) == {}


def test_a_closing_message_closes_the_group_to_which_it_is_rerouted(exclusive: MessageTable) -> None:
    close(exclusive, "a1")
    put(exclusive, "b1")
    exclusive.groups.reroute("a", "b")
    exclusive.ack(exclusive.receive(10, consumer="x"))
    assert owners(exclusive) == {}


def test_sequenced_groups_ignore_it(sequenced: MessageTable) -> None:
    close(sequenced, "a1")
    put(sequenced, "a2")
    sequenced.ack(sequenced.receive(1, consumer="x"))
    assert names(sequenced.receive(consumer="x")) == ["a2"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("options", "message", "reason"),
    [
        ({}, {"group": "a"}, "closes_group must be False in a table without the option groups, got True"),
        ({"groups": "exclusive", "ungrouped": "free"}, {}, "closes_group must be False for a message that belongs to"),
        (
            {"groups": "exclusive"},
            {"group": "a", "unique": "k", "on_conflict": "replace"},
            "closes_group and on_conflict='replace' must not both be given",
        ),
    ],
)
def test_a_message_that_cannot_close_a_group_is_refused(
    make_table: Callable[..., MessageTable], options: dict[str, str], message: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        make_table(**options).put("x", closes_group=True, **message)


@pytest.mark.one_database
def test_closes_group_must_be_a_bool(exclusive: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match="closes_group must be True or False, got 'yes'"):
        exclusive.put_many([{"payload": "a1", "group": "a", "closes_group": "yes"}])


@pytest.mark.one_database
def test_routing_writes_no_group_that_no_message_closes(exclusive: MessageTable, database: Database) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")
    with database.begin() as connection:
        assert connection.execute(routing._closing(exclusive.context), {"groups": ["a"]}).rowcount == 0
