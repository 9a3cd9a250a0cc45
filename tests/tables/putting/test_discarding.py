"""What becomes of a message elsewhere while it waits in a subscription keeps it from being handed out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]
LATER = 10**15


@pytest.fixture
def elsewhere(orders: MessageTable, connect: Callable[..., Database], clock: MovableClock) -> MessageTable:
    """Give the table as another process has it."""
    return connect(clock=clock).table(orders.name)


def put_numbers(table: MessageTable, count: int, **more: object) -> None:
    table.put_many([{"payload": str(number), **more} for number in range(1, count + 1)])


@contextmanager
def subscribed(table: MessageTable, limit: int | None = None) -> Generator[TableSubscription]:
    """Subscribe, and stop one day where what is waited for does not come."""
    with table.subscribe(limit=limit) as deliveries:
        stopper = threading.Timer(20, deliveries.stop)
        stopper.start()
        try:
            yield deliveries
        finally:
            stopper.cancel()


def rest_of(deliveries: TableSubscription) -> list[str]:
    """Hand out all that the subscription has, and what is due beside it, until the last message."""
    found: list[str] = []
    for delivery in deliveries:
        delivery.ack()
        if delivery.payload == "last":
            return found
        found.append(delivery.payload)
    return found


@pytest.mark.parametrize("deed", ["ack", "reschedule", "retry"])
def test_changes_by_this_process_to_a_waiting_message_count_immediately(
    orders: MessageTable, database: Database, clock: MovableClock, deed: str
) -> None:
    put_numbers(orders, 4)
    same = database.table("orders")  # another handle of it
    with subscribed(orders, limit=4) as deliveries:
        next(deliveries).ack()
        if deed == "ack":
            assert same.ack([3]) == 1
        elif deed == "reschedule":
            same.reschedule(3, clock.now + LATER)
        else:
            same.retry(3)
            [again] = same.receive()
            assert (again.id, again.epoch) == (3, 1)
        orders.put("last", priority=-1)
        assert rest_of(deliveries) == ["2", "4"]


DEEDS = {
    "an ack": "UPDATE orders SET time_acked = :now, time_next = NULL WHERE id = 3 AND time_acked IS NULL",
    "a reschedule to the past": "UPDATE orders SET time_next = :past WHERE id = 3 AND time_acked IS NULL",
    "a reschedule to the future": "UPDATE orders SET time_next = :future WHERE id = 3 AND time_acked IS NULL",
    "a new epoch": "UPDATE orders SET epoch = 7 WHERE id = 3 AND time_acked IS NULL",
    "a removal": "DELETE FROM orders WHERE id = 3",
}


@pytest.mark.parametrize("deed", DEEDS)
def test_changes_by_plain_sql_to_a_waiting_message_count_after_a_second(
    orders: MessageTable, database: Database, clock: MovableClock, deed: str
) -> None:
    put_numbers(orders, 4)
    with subscribed(orders, limit=4) as deliveries:
        next(deliveries).ack()
        moments = {"now": clock.now, "past": clock.now - 1, "future": clock.now + LATER}
        used = {name: value for name, value in moments.items() if f":{name}" in DEEDS[deed]}
        assert run(database, DEEDS[deed], **used) == 1
        clock.move("1s")
        assert [next(deliveries).payload for _ in range(2)] == ["2", "4"]


def test_changes_by_another_process_count_after_a_second_and_not_before(
    orders: MessageTable, elsewhere: MessageTable, clock: MovableClock
) -> None:
    put_numbers(orders, 4)
    with subscribed(orders, limit=4) as deliveries:
        next(deliveries).ack()
        elsewhere.ack([2, 3])
        # It is handed out, and its ack says what happened.
        with pytest.raises(wc.LeaseLostError):
            next(deliveries).ack()
        clock.move("1s")
        orders.put("last", priority=-1)
        assert rest_of(deliveries) == ["4"]


def test_an_ack_in_the_callers_transaction_counts_when_it_is_committed(
    orders: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(orders, 3)
    with subscribed(orders, limit=3) as deliveries:
        next(deliveries).ack()
        with database.backend.engine.connect() as connection:
            orders.ack(2, connection=connection)
            connection.rollback()
        clock.move("1s")
        assert next(deliveries).payload == "2"
        with database.backend.engine.begin() as connection:
            orders.ack(3, connection=connection)
        clock.move("1s")
        orders.put("last", priority=-1)
        assert rest_of(deliveries) == []


def test_a_message_that_is_ours_still_is_handed_out_however_long_it_waited(
    orders: MessageTable, clock: MovableClock
) -> None:
    put_numbers(orders, 3)
    with subscribed(orders, limit=3) as deliveries:
        received: list[str] = []
        for _ in range(3):
            with next(deliveries) as delivery:
                clock.move("9s")
                received.append(delivery.payload)
    assert received == ["1", "2", "3"]


def test_waiting_messages_are_checked_once_a_second_and_not_for_each_message(
    orders: MessageTable, clock: MovableClock, database: Database
) -> None:
    put_numbers(orders, 9)
    with subscribed(orders, limit=9) as deliveries:
        next(deliveries)
        with statements_of(database.backend) as seen:
            for _ in range(4):
                next(deliveries)
            assert not seen
            clock.move("1s")
            for _ in range(4):
                next(deliveries)
        assert len([text for text, _ in seen if text.startswith("SELECT") and "claim_id" in text]) == 1


def test_messages_given_back_with_the_head_of_their_group_are_not_handed_out(make_table: MakeTable) -> None:
    table = make_table(groups="sequenced")
    put_numbers(table, 3, group="a")
    table.put("last", group="b")
    with subscribed(table, limit=4) as deliveries:
        next(deliveries).nack("1h")
        assert next(deliveries).payload == "last"


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_message_that_left_its_group_is_not_handed_out(make_table: MakeTable, groups: str) -> None:
    table = make_table(groups=groups)
    put_numbers(table, 3, group="a")
    table.put("last", group="b")
    with subscribed(table, limit=4) as deliveries:
        next(deliveries).ack()
        assert table.groups.purge("a", force=True).done == 2
        assert next(deliveries).payload == "last"


def test_waiting_messages_of_a_group_stay_ours_when_its_head_is_extended(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    put_numbers(table, 2, group="a")
    with subscribed(table, limit=2) as deliveries:
        first = next(deliveries)
        first.extend("1h")
        clock.move("10m")
        first.ack()
        second = next(deliveries)
        assert (second.payload, second.epoch) == ("2", 1)
        second.ack()


def test_messages_that_are_acked_by_their_ids_make_room_in_the_cache(make_table: MakeTable) -> None:
    table = make_table(cache_size=2)
    put_numbers(table, 5)
    with subscribed(table) as deliveries:
        for number in range(1, 6):
            delivery = next(deliveries)
            assert delivery.payload == str(number)
            table.ack(delivery.id)
            assert delivery.lost
