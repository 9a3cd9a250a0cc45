from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable


def test_the_highest_priority_comes_first_and_then_the_oldest(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("newer", at=clock.now - 1)
    orders.put("older", at=clock.now - 2)
    orders.put("urgent", priority=9)
    orders.put("idle", priority=-1, at=0)
    assert payloads(orders) == ["urgent", "older", "newer", "idle"]


def test_a_message_that_is_not_due_keeps_no_lower_priority_from_being_sent(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("later", priority=9, at=clock.now + 1)
    orders.put("now")
    assert payloads(orders) == ["now"]


def test_no_more_than_the_limit_or_the_batch_size_are_taken(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(batch_size=2)
    table.put_many([{"payload": str(number)} for number in range(7)])
    assert len(table.receive()) == 2
    assert len(table.receive(limit=4)) == 4
    assert len(table.receive()) == 1
    with pytest.raises(InvalidArgumentError, match=r"^limit must .*, got 0"):
        table.receive(limit=0)


def test_a_message_whose_lease_is_alive_is_not_sent_again(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    clock.move("29.999999999s")
    assert orders.receive() == []
    assert delivery.lease_until == clock.now + 1
    clock.move(1)
    assert payloads(orders) == ["tea"]


def test_a_message_that_is_not_acked_is_sent_again_after_twice_the_wait_each_time(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("tea")
    waits: list[int] = []
    for epoch in range(1, 6):
        [delivery] = orders.receive()
        assert delivery.epoch == epoch
        waits.append((delivery.lease_until - clock.now) // 1_000_000_000)
        clock.now = delivery.lease_until
    assert waits == [30, 60, 120, 240, 480]


def test_waits_vary_within_the_jitter_and_each_message_has_its_own(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(jitter=0.33)
    table.put_many([{"payload": str(number)} for number in range(50)])
    assert {delivery.lease_until - clock.now for delivery in table.receive(50)} == {30_000_000_000}
    clock.move("30s")
    waits = {delivery.lease_until - clock.now for delivery in table.receive(50)}
    assert len(waits) == 50
    assert all(60e9 * 0.67 <= wait <= 60e9 * 1.33 for wait in waits)


def test_two_consumers_never_get_the_same_message(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(10)])
    first, second = orders.receive(5), orders.receive(5)
    assert {delivery.id for delivery in first} | {delivery.id for delivery in second} == set(range(1, 11))


def test_receive_without_wait_returns_at_once_if_nothing_is_due(orders: MessageTable) -> None:
    assert orders.receive() == []


def test_a_waiting_receive_gets_what_another_process_puts(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", poll_interval="1h")
    other = connect().table("orders")
    putter = threading.Timer(0.05, other.put, ["tea"])
    putter.start()
    assert payloads_after_waiting(table) == ["tea"]
    putter.join()


def test_a_waiting_receive_gets_what_becomes_due(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", poll_interval="1h")
    table.put("tea", at=time.time_ns() + 50_000_000)
    assert payloads_after_waiting(table) == ["tea"]


def test_a_waiting_receive_gives_up_in_the_end(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text")
    assert table.receive(wait="10ms") == []


def payloads_after_waiting(table: MessageTable) -> list[str]:
    return [delivery.payload for delivery in table.receive(wait="1h")]
