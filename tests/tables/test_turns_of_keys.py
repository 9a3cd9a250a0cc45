from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.claims.turns import deal

MakeTable = Callable[..., MessageTable]


@pytest.fixture
def fair(make_table: MakeTable) -> MessageTable:
    return make_table(columns={"customer": "text"}, fair_by="customer", batch_size=100)


def _put(table: MessageTable, *names: str, priority: int = 0) -> None:
    table.put_many([{"payload": name, "customer": name[0], "priority": priority} for name in names])


def _one_by_one(table: MessageTable, count: int) -> list[object]:
    return [table.receive(1)[0].payload for _ in range(count)]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 60))
def test_keys_take_turns_one_message_each(most: list[int], room: int) -> None:
    keys = list(range(len(most)))
    ring = [key for key in keys if most[key]]
    got: dict[int, int] = {}
    while ring and room > sum(got.values()):
        key = ring.pop(0)
        got[key] = got.pop(key, 0) + 1
        if got[key] < most[key]:
            ring.append(key)
    dealt = deal(keys, dict(enumerate(most)), room)
    assert list(dealt.items()) == list(got.items())


def test_keys_take_turns(fair: MessageTable) -> None:
    _put(fair, *(f"a{number}" for number in range(5)), "b0", "c0", "b1")
    assert [one.payload for one in fair.receive()] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_turns_go_on_from_claim_to_claim_and_from_process_to_process(fair: MessageTable, database: Database) -> None:
    _put(fair, "a0", "a1", "a2", "b0", "b1", "c0", "c1")
    other = database.table("orders")
    found = [table.receive(1)[0].payload for table in (fair, other) * 3]
    assert found == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_the_first_message_of_a_new_key_comes_within_two_messages(fair: MessageTable) -> None:
    _put(fair, *(f"a{number}" for number in range(100)))
    _one_by_one(fair, 10)
    _put(fair, "z0")
    assert "z0" in _one_by_one(fair, 2)


def test_a_higher_priority_goes_first_across_keys(fair: MessageTable) -> None:
    _put(fair, "a0", "b0")
    _put(fair, "a1", "a2", "c0", priority=1)
    assert [one.payload for one in fair.receive()] == ["a1", "c0", "a2", "a0", "b0"]


def test_a_key_that_is_always_served_does_not_hold_up_one_whose_messages_come_back(
    fair: MessageTable,
) -> None:
    _put(fair, *(f"a{number}" for number in range(50)), "b0")
    first, second = fair.receive(2)
    assert {first.payload, second.payload} == {"a0", "b0"}
    for one in (first, second):
        if one.payload == "b0":
            one.nack(delay="0s")
    assert "b0" in _one_by_one(fair, 2)
