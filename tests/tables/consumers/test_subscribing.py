from __future__ import annotations

import threading
import time
from collections.abc import Callable

import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable


def test_a_subscription_gives_one_message_after_another(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(25)])
    received: list[str] = []
    with orders.subscribe(limit=10) as deliveries:
        for delivery in deliveries:
            with delivery:
                received.append(delivery.payload)
            if len(received) == 25:
                break
    assert received == [str(number) for number in range(25)]
    assert orders.stats().acked == 25


def test_closing_returns_unhanded_messages_without_counting_an_attempt(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put_many([{"payload": str(number), "at": clock.now - number} for number in range(5)])
    with orders.subscribe(limit=4) as deliveries:
        assert next(deliveries).payload == "4"
    again = orders.receive()
    assert [(delivery.payload, delivery.epoch) for delivery in again] == [("3", 1), ("2", 1), ("1", 1), ("0", 1)]


def test_closing_gives_back_the_rest_of_a_group_in_order(sequenced: MessageTable) -> None:
    sequenced.put_many([{"payload": str(number), "group": "a"} for number in range(4)])
    with sequenced.subscribe(limit=3) as deliveries, next(deliveries) as delivery:
        assert delivery.payload == "0"
    again = sequenced.receive()
    assert [(delivery.payload, delivery.epoch) for delivery in again] == [("1", 1), ("2", 1), ("3", 1)]


def test_a_message_whose_lease_ended_in_the_cache_is_not_handed_out(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    with orders.subscribe(limit=2) as deliveries:
        next(deliveries).ack()
        clock.move("30s")
        [elsewhere] = orders.receive()
        elsewhere.ack()
        orders.put("c")
        assert next(deliveries).payload == "c"


def test_a_subscription_holds_no_more_than_cache_size(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(cache_size=3)
    table.put_many([{"payload": str(number)} for number in range(5)])
    with table.subscribe(limit=2) as deliveries:
        held = [next(deliveries) for _ in range(3)]
        assert table.stats().in_flight == 3
        acker = threading.Timer(0.05, held[0].ack)
        acker.start()
        assert next(deliveries).payload == "3"
        acker.join()


def test_a_waiting_subscription_ends_when_it_is_stopped(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", poll_interval="1h")
    with table.subscribe() as deliveries:
        stopper = threading.Timer(0.05, deliveries.stop)
        stopper.start()
        assert list(deliveries) == []
        stopper.join()


def test_a_subscription_sleeps_until_the_next_message_is_due(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", poll_interval="1h")
    table.put("tea", at=time.time_ns() + 100_000_000)
    with table.subscribe() as deliveries:
        assert next(deliveries).time_scheduled <= time.time_ns()


def test_two_subscriptions_share_the_messages(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(8)])
    with orders.subscribe(limit=1) as first, orders.subscribe(limit=1) as second:
        received = [next(each).payload for _ in range(4) for each in (first, second)]
    assert received == [str(number) for number in range(8)]


def test_a_subscription_purges_old_acked_messages_for_every_way_to_ack(
    make_table: Callable[..., MessageTable], clock: MovableClock, database: Database
) -> None:
    table = make_table(purge_after="1h")
    table.put_many([{"payload": str(number)} for number in range(4)])
    table.ack(1)
    with database.backend.engine.begin() as connection:
        update = sa.text("UPDATE orders SET time_acked = :now, time_next = NULL WHERE id = 2 AND time_acked IS NULL")
        connection.execute(update, {"now": clock.now})
    clock.move("3601s")
    with table.subscribe() as deliveries:
        next(deliveries)
    assert table.stats().acked == 0
