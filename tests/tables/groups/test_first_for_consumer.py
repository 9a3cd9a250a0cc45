"""`Delivery.first_for_consumer`: the first message of an exclusive group that its owner gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from types import SimpleNamespace

import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.grouped import put

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import discard
from waterclock.tables.message_table import MessageTable
from waterclock.work.running import calling


def firsts(deliveries: Iterable[Delivery]) -> list[tuple[str, bool]]:
    return [(str(one.payload), one.first_for_consumer) for one in deliveries]


def test_only_the_first_message_of_a_group_is_first(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2", "b1")
    assert firsts(exclusive.receive(10, consumer="x")) == [("a1", True), ("a2", False), ("b1", True)]
    put(exclusive, "a3")
    assert firsts(exclusive.receive(10, consumer="x")) == [("a3", False)]


def test_a_first_message_is_first_again_when_it_is_sent_again(exclusive: MessageTable, clock: MovableClock) -> None:
    put(exclusive, "a1", "a2")
    [first] = exclusive.receive(1, consumer="x")
    first.nack(0)
    clock.move("1s")
    [first] = exclusive.receive(1, consumer="x")
    assert first.first_for_consumer
    first.ack()
    assert firsts(exclusive.receive(1, consumer="x")) == [("a2", False)]


def test_a_group_is_new_to_the_next_owner_and_to_an_owner_that_comes_back(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1", "a2", "a3")
    exclusive.receive(1, consumer="x")
    clock.move("31s")
    [first] = exclusive.receive(1, consumer="y")
    assert first.first_for_consumer
    first.ack()
    exclusive.groups.release("a")
    assert firsts(exclusive.receive(1, consumer="x")) == [("a2", True)]


def test_a_group_that_was_moved_to_a_consumer_is_new_to_it(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2", "a3")
    [first] = exclusive.receive(1, consumer="x")
    exclusive.groups.pin("a", "y")
    first.ack()
    assert firsts(exclusive.receive(2, consumer="y")) == [("a2", True), ("a3", False)]


def test_a_pinned_group_is_new_to_the_next_session(exclusive: MessageTable, connect: Callable[..., Database]) -> None:
    put(exclusive, "a1", "a2")
    exclusive.groups.pin("a", "x")
    with exclusive.subscribe(consumer="x", limit=1) as deliveries:
        next(deliveries).ack()
    with closing(connect()) as database:
        table = database.table(exclusive.name)
        assert firsts(table.receive(1, consumer="x")) == [("a2", True)]


def test_no_message_of_a_sequenced_group_is_first(sequenced: MessageTable) -> None:
    put(sequenced, "a1")
    assert firsts(sequenced.receive(1, consumer="x")) == [("a1", False)]


def test_the_claim_of_further_messages_leaves_the_owners_row_as_it_is(
    exclusive: MessageTable, database: Database
) -> None:
    put(exclusive, "a1", "a2")
    exclusive.receive(1, consumer="x")
    with database.begin() as connection:
        before = connection.execute(sa.select(groups.c.had_by, groups.c.had_first)).one()
    exclusive.receive(1, consumer="x")
    with database.begin() as connection:
        assert connection.execute(sa.select(groups.c.had_by, groups.c.had_first)).one() == before


def test_the_next_message_is_first_if_the_first_was_acked_by_its_id_while_it_waited(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "b1", "b2")
    [waiting] = [one.id for one in exclusive.peek(10) if one.payload == "b1"]
    with exclusive.subscribe(consumer="x", limit=3) as deliveries:
        assert firsts([next(deliveries)]) == [("a1", True)]
        exclusive.ack([waiting])
        assert firsts([next(deliveries)]) == [("b2", True)]


def test_the_next_messages_are_first_if_those_of_two_groups_were_acked_while_they_waited(
    exclusive: MessageTable,
) -> None:
    put(exclusive, "a1", "b1", "c1", "d1")
    waiting = [one.id for one in exclusive.peek(10) if one.payload in ("b1", "c1")]
    with exclusive.subscribe(consumer="x", limit=4) as deliveries:
        assert next(deliveries).payload == "a1"
        exclusive.ack(waiting)
        assert next(deliveries).payload == "d1"
        put(exclusive, "b2", "c2")
        assert firsts([next(deliveries), next(deliveries)]) == [("b2", True), ("c2", True)]


def test_a_worker_marks_the_message_behind_a_first_one_that_is_never_handled(exclusive: MessageTable) -> None:
    put(exclusive, "b1", "b2")
    skipped, behind = exclusive.receive(2, consumer="x")
    exclusive.ack([skipped.id])
    discard([skipped], extended=False)
    lane = SimpleNamespace(waiting=[SimpleNamespace(delivery=behind)])
    calling._unbegun(SimpleNamespace(delivery=skipped, lane=lane))  # as it skips the message
    assert behind.first_for_consumer
    put(exclusive, "b3")
    assert firsts(exclusive.receive(1, consumer="x")) == [("b3", False)]
