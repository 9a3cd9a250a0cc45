"""Cases that test other implementations of *Vitess Messaging*, as far as no other test has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.services import Service

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable


def put_numbers(table: MessageTable, count: int) -> None:
    table.put_many([{"payload": str(number)} for number in range(count)])


def test_a_receiver_that_is_cancelled_gets_nothing_more_and_its_messages_go_elsewhere(orders: MessageTable) -> None:
    put_numbers(orders, 6)
    with orders.subscribe(limit=3) as cancelled, orders.subscribe(limit=3) as other:
        first = next(cancelled)
        cancelled.close()
        assert list(cancelled) == []
        rest = [next(other) for _ in range(5)]
    assert {one.payload for one in rest} | {first.payload} == set("012345")
    assert all(one.epoch == 1 for one in rest)


def test_three_rows_at_a_batch_size_of_two_arrive_in_two(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(batch_size=2)
    put_numbers(table, 3)
    assert [[one.payload for one in table.receive()] for _ in range(3)] == [["0", "1"], ["2"], []]


def test_nothing_is_sent_after_the_last_receiver_has_left(orders: MessageTable) -> None:
    put_numbers(orders, 1)
    with orders.subscribe() as deliveries:
        next(deliveries).ack()
    put_numbers(orders, 3)
    stats = orders.stats()
    assert (stats.ready, stats.in_flight) == (3, 0)
    assert {one.epoch for one in orders.receive()} == {1}


def test_a_full_cache_continues_long_before_the_poll_interval_is_over(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", cache_size=2, poll_interval="1h", ack_wait="1h")
    put_numbers(table, 5)
    received: list[str] = []
    with table.subscribe() as deliveries:
        held = [next(deliveries), next(deliveries)]
        acker = threading.Timer(0.05, lambda: [one.ack() for one in held])
        acker.start()
        for _ in range(3):
            with next(deliveries) as delivery:
                received.append(delivery.payload)
        acker.join()
    assert received == ["2", "3", "4"]


@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_delivery_continues_after_the_server_was_restarted(
    request: pytest.FixtureRequest, name: str, immediate: bool, tmp_path: Path
) -> None:
    server: Service = request.getfixturevalue(f"{name}_server")
    with server.new_database() as url, wc.connect(url, tmp_path) as database:
        table = database.create_table("orders", payload="text", ack_wait="1h")
        put_numbers(table, 2)
        with table.subscribe(limit=1) as deliveries:
            first = next(deliveries)
            server.restart(immediate=immediate)
            first.ack()
            next(deliveries).ack()
            table.put("after")
            with next(deliveries) as delivery:
                assert delivery.payload == "after"
        assert table.stats().acked == 3
