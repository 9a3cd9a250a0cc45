"""A delivery's handle lets another process end the delivery, and nothing else passes for one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest

import waterclock as wc
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.consumers.delivery_handle import handle_of


def test_another_process_acks_extends_and_gives_back_by_handle(connect: Callable[..., wc.Database]) -> None:
    here, there = connect(), connect()
    table = here.create_table("orders", payload="text", groups="sequenced", ack_wait="1m")
    table.put_many([{"payload": each, "group": each} for each in "abc"])
    first, second, third = (handle_of(each) for each in table.receive(3))
    other = there.table("orders")
    extended = other.delivery(first)
    before = extended.lease_until
    extended.extend("1h")
    assert extended.lease_until > before
    other.delivery(first).ack()
    other.delivery(first).ack()
    other.nack([other.delivery(second)], "0s")
    assert other.ack([other.delivery(third)]) == 1
    assert [each.payload for each in table.receive(3)] == ["b"]
    with pytest.raises(LeaseLostError):
        other.delivery(second).ack()


def test_a_failure_by_handle_adds_to_the_attempts_of_the_message(connect: Callable[..., wc.Database]) -> None:
    here, there = connect(), connect()
    table, other = here.create_table("orders", payload="text"), there.table("orders")
    table.put("a")
    for error in ("one", "two"):
        [delivery] = table.receive(consumer="ada")
        other.delivery(handle_of(delivery)).nack("0s", error=error)
    first, second = table.explain(1).attempts
    assert [(each.error, each.consumer, each.epoch) for each in (first, second)] == [
        ("one", "ada", 1),
        ("two", "ada", 2),
    ]
    assert second.claimed_at >= first.claimed_at + first.duration > 0


@pytest.mark.parametrize("id_type", ["bigint", "text", "uuid"])
@pytest.mark.one_database
def test_every_type_of_id_has_handles(database: wc.Database, id_type: str) -> None:
    table = database.create_table("orders", payload="text", id_type=id_type)
    table.put("x", id="ü" * 200 if id_type == "text" else None)
    [delivery] = table.receive()
    again = table.delivery(handle_of(delivery))
    assert again.leased == delivery.leased
    again.ack()
    assert table.stats().acked == 1


@pytest.mark.one_database
def test_a_text_that_is_not_a_handle_is_refused(database: wc.Database) -> None:
    table = database.create_table("orders")
    table.put(b"x")
    [delivery] = table.receive()
    fields = [*delivery.leased, delivery.lease_until, delivery.since_claim()[0]]
    wrong = [fields[:-1], [*fields[:-1], 2**63], [True, *fields[1:]], [*fields[:1], "x", *fields[2:]], {}, 1, None]
    texts = ["", "ü", "!", "a" * 5_000, *(base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in wrong)]
    for text in [*texts, base64.urlsafe_b64encode(b"[" * 2_900).decode()]:
        with pytest.raises(InvalidArgumentError):
            table.delivery(text)
    delivery.ack()
