from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable


def test_put_messages_are_delivered(orders: MessageTable) -> None:
    message_id = orders.put("tea", headers={"shop": "Köln"}, priority=3)
    [delivery] = orders.receive()
    assert delivery.id == message_id
    assert (delivery.payload, delivery.headers, delivery.priority) == ("tea", {"shop": "Köln"}, 3)
    assert (delivery.epoch, delivery.group) == (1, None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bytes", [b"", b"\x00\xff", bytearray(b"a")]),
        ("text", ["", "héllo", "\x01"]),
        ("json", [None, 1, "a", [1, {"b": None}], {"a": 1.5}]),
    ],
)
def test_every_payload_comes_out_as_it_went_in(
    make_table: Callable[..., MessageTable], kind: str, values: list[Any]
) -> None:
    table = make_table(payload=kind)
    table.put_many([{"payload": value} for value in values])
    assert payloads(table) == values


def test_generated_ids_are_numbers_and_skip_those_that_are_taken(orders: MessageTable) -> None:
    assert orders.put("a") == 1
    orders.put("b", id=3)
    assert orders.put_many([{"payload": "c"}, {"payload": "d", "id": 5}, {"payload": "e"}]) == [6, 5, 7]
    assert sorted(payloads(orders)) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_error_reports_that_a_caller_has_used_up_the_numbers(orders: MessageTable) -> None:
    orders.put("great", id=2**63 - 2)
    assert orders.put("greatest") == 2**63 - 1
    for put in (lambda: orders.put("more"), lambda: orders.put_many([{"payload": "more"}])):
        with pytest.raises(InvalidArgumentError, match=r"cannot generate 1 ids for .* 9223372036854775807 is taken"):
            put()
    assert orders.put("own", id=7) == 7


def test_uuid_ids_are_generated_in_order_of_time(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(id_type="uuid")
    message_id = table.put("a")
    assert isinstance(message_id, uuid.UUID)
    assert message_id.version == 7
    assert [delivery.id for delivery in table.receive()] == [message_id]
    assert table.ack(str(message_id)) == 1


@pytest.mark.one_database
def test_text_ids_must_be_given(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(id_type="text")
    assert table.put("a", id="first") == "first"
    with pytest.raises(InvalidArgumentError, match=r"^id must "):
        table.put("b")
    assert table.ack("first") == 1


def test_putting_an_id_again_changes_nothing_and_is_reported(orders: MessageTable) -> None:
    orders.put("a", id=7)
    assert orders.put("b", id=7) == 7
    ids = orders.put_many([{"payload": "c", "id": 7}, {"payload": "d", "id": 8}, {"payload": "e", "id": 8}])
    assert ids == [7, 8, 8]
    assert ids.existing == [7, 8]
    assert payloads(orders) == ["a", "d"]


def test_putting_an_id_in_flight_or_acked_adds_no_message(orders: MessageTable) -> None:
    orders.put("a", id=7)
    [delivery] = orders.receive()
    orders.put("a", id=7)
    assert orders.receive() == []
    delivery.ack()
    orders.put("a", id=7)
    assert orders.receive() == []


def test_a_message_for_later_comes_when_its_time_has_come(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea", at=clock.now + 5_000_000_000)
    assert payloads(orders) == []
    clock.move("4.999999999s")
    assert payloads(orders) == []
    clock.move(1)
    assert payloads(orders) == ["tea"]


def test_further_columns_are_put_and_delivered(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(columns={"region": "text", "weight": "double", "paid": "boolean", "more": "json"})
    table.put("tea", region="eu", weight=1.5, paid=True, more=[1])
    table.put("milk", region="us")
    first, second = table.receive()
    assert first.columns == {"region": "eu", "weight": 1.5, "paid": True, "more": [1]}
    assert second.columns == {"region": "us", "weight": None, "paid": None, "more": None}


@pytest.mark.one_database
@pytest.mark.parametrize(
    "message",
    [
        {"payload": b"bytes in a text table"},
        {"payload": "a", "id": "seven"},
        {"payload": "a", "id": 2**63},
        {"payload": "a", "id": True},
        {"payload": "a", "at": "tomorrow"},
        {"payload": "a", "group": 7},
        {"payload": "a", "group": "x" * 256},
        {"payload": "a", "headers": {"a": 1}},
        {"payload": "a", "priority": 2**31},
    ],
)
def test_an_invalid_message_is_refused_by_the_arguments_name(orders: MessageTable, message: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^{list(message)[-1]} must be "):
        orders.put_many([{"payload": "good"}, message])
    assert payloads(orders) == []


@pytest.mark.one_database
def test_a_message_with_an_unknown_column_is_refused_by_its_name(orders: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^no column named 'colour' in message table 'orders'"):
        orders.put_many([{"payload": "good"}, {"payload": "a", "colour": "red"}])
    assert payloads(orders) == []


def test_nothing_is_put_for_an_empty_list(orders: MessageTable) -> None:
    assert orders.put_many([]) == []


def test_a_delayed_message_is_due_so_long_after_it_was_put(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    orders = make_table()
    orders.put_many([{"payload": "now"}, {"payload": "soon", "delay": "5s"}, {"payload": "at once", "delay": None}])
    orders.put("later", delay="1d")
    assert payloads(orders) == ["now", "at once"]
    assert [one.due_at - clock.now for one in orders.peek()] == [5_000_000_000, 86_400_000_000_000]
    clock.move("5s")
    assert "soon" in payloads(orders)


@pytest.mark.one_database
@pytest.mark.parametrize("delay", [-1, "soon", 1.5, "-5s", object()])
def test_an_invalid_delay_is_refused(orders: MessageTable, delay: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="delay"):
        orders.put("tea", delay=delay)


def test_a_delay_and_a_time_exclude_each_other(orders: MessageTable, clock: MovableClock) -> None:
    with pytest.raises(InvalidArgumentError, match="delay and at must not both be given"):
        orders.put("tea", at=clock.now, delay="5s")


def test_a_delay_without_end_is_the_largest_time(orders: MessageTable) -> None:
    orders.put("tea", delay="100000d")
    assert payloads(orders) == []


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["delay", "waterclock_now", "Waterclock_x"])
def test_no_further_column_is_named_as_an_argument_or_with_our_prefix(
    make_table: Callable[..., MessageTable], name: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"that Waterclock does not use itself, got '{name}'"):
        make_table(columns={name: "bigint"})


def test_an_id_that_was_drawn_is_never_drawn_again(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(dead_letter="dead")
    table.put("of its own", id=1000)
    table.receive()[0].ack()
    ids = [table.put("first")]
    table.receive()[0].dead_letter("broken")
    ids.append(table.put("second"))
    table.receive()[0].dead_letter("broken")
    assert len(set(ids)) == 2
    assert len(table.dead_letters()) == 2
