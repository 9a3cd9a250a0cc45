"""A key with messages of several priorities has one turn, in a table with ``fair_by``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.catalogue import table_row
from waterclock.tables.keys.turn_tiers import HAS_TURN
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_keyed

MakeTable = Callable[..., MessageTable]
pytestmark = pytest.mark.both_servers


@pytest.fixture
def fair(make_table: MakeTable) -> MessageTable:
    return make_table(columns={"customer": "text"}, fair_by="customer", batch_size=100)


def _put(table: MessageTable, *names: str, priority: int = 0) -> list[Any]:
    return list(table.put_many([{"payload": name, "customer": name[0], "priority": priority} for name in names]))


def _receive(table: MessageTable, count: int = 1) -> list[object]:
    return [one.payload for one in table.receive(count)]


def _turns(database: Database) -> dict[str, int]:
    """Return the turn of each row that waits for one, by ``key:level``."""
    its = message_keys.c
    found = sa.select(its.message_key, its.level, its.turn).where(its.is_due == HAS_TURN)
    with database.backend.engine.connect() as connection:
        return {f"{key}:{level}": turn for key, level, turn in connection.execute(found)}


def test_a_turn_of_a_key_moves_one_row_whatever_the_number_of_its_priorities(
    fair: MessageTable, database: Database
) -> None:
    for priority in range(12):
        _put(fair, "a", "a", priority=priority)
    _put(fair, "b", "b", "b")
    assert {*_receive(fair, 2)} == {"a", "b"}
    assert _turns(database).keys() == {"a:-11", "b:0"}
    before = _turns(database)
    assert {*_receive(fair, 2)} == {"a", "b"}
    after = _turns(database)
    assert after.keys() == {"a:-11", "b:0"}
    assert min(after.values()) > max(before.values())


def test_messages_of_a_new_priority_are_next_in_their_key(fair: MessageTable, database: Database) -> None:
    _put(fair, "a2", "a3", priority=2)
    _put(fair, "a1", "a0", priority=1)
    assert _receive(fair) == ["a2"]
    _put(fair, "a9", priority=9)
    _put(fair, "a-", priority=-9)
    assert _receive(fair) == ["a9"]
    assert _turns(database).keys() == {"a:-9"}
    assert [_receive(fair) for _ in range(4)] == [["a3"], ["a1"], ["a0"], ["a-"]]


@pytest.mark.parametrize("options", [{"fair_by": "customer"}, {"limit": {"customer": 30}}])
def test_many_new_messages_of_a_key_come_by_priority(make_table: MakeTable, options: dict[str, Any]) -> None:
    table = make_table(columns={"customer": "text"}, **options)
    new = [{"payload": "x", "customer": "abc"[nth % 3], "priority": nth * 7 % 10} for nth in range(240)]
    table.put_many(new)
    waiting = {key: sorted(one["priority"] for one in new if one["customer"] == key) for key in "abc"}
    for _ in range(60):
        claimed = table.receive(4)
        for one in claimed:
            assert one.priority == waiting[str(one.columns["customer"])].pop()
        table.ack(claimed)
    assert not any(waiting.values())


def test_lower_priorities_follow_when_all_messages_of_a_higher_one_are_cancelled(fair: MessageTable) -> None:
    ids = _put(fair, "a8", "a9", priority=9)
    _put(fair, "a0")
    assert _receive(fair) == ["a8"]
    fair.cancel(ids)
    assert _receive(fair) == ["a0"]


def test_lower_priorities_follow_behind_many_keys_whose_messages_were_cancelled(fair: MessageTable) -> None:
    customers = [f"k{number:02}" for number in range(60)]
    ids = list(fair.put_many([{"payload": "x", "customer": one, "priority": 9} for one in customers * 2]))
    fair.put_many([{"payload": one, "customer": one} for one in customers])
    assert _receive(fair, 60) == ["x"] * 60
    fair.cancel(ids)
    assert sorted(_receive(fair)[0] for _ in range(60)) == customers


def test_lower_priorities_follow_when_a_key_pauses_and_its_highest_messages_are_cancelled(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(columns={"customer": "text"}, fair_by="customer", rate={"customer": "1/s"})
    ids = _put(table, "a8", "a9", priority=9)
    _put(table, "a0")
    assert _receive(table) == ["a8"]
    assert _receive(table) == []  # the key pauses
    table.cancel(ids)
    clock.move("2s")
    assert _receive(table) == ["a0"]


def test_a_rate_holds_for_the_messages_of_all_priorities(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(columns={"customer": "text"}, fair_by="customer", rate={"customer": "1/s"}, batch_size=100)
    for priority in range(5):
        _put(table, f"a{priority}", priority=priority)
    got: list[list[object]] = []
    for _ in range(5):
        got.append(_receive(table, 9))
        assert _receive(table, 9) == []
        clock.move("1s")
    assert got == [["a4"], ["a3"], ["a2"], ["a1"], ["a0"]]


@pytest.mark.parametrize("room", [1, 2, 3, 4, 20])
def test_shares_are_exact_if_a_turn_goes_on_in_the_next_priority(make_table: MakeTable, room: int) -> None:
    fair = make_table(columns={"customer": "text"}, fair_by="customer", weights={"a": 3}, batch_size=100)
    for priority in range(6):
        _put(fair, f"a{priority}", priority=priority)
    _put(fair, *(f"b{number}" for number in range(3)))
    got = [payload for _ in range(-(-9 // room)) for payload in _receive(fair, room)]
    assert [name for name in got if name[0] == "a"] == ["a5", "a4", "a3", "a2", "a1", "a0"]
    keys = "".join(name[0] for name in got)
    assert keys in ("aaabaaabb", "baaabaaab")


def test_a_turn_goes_on_in_a_priority_that_is_new(make_table: MakeTable) -> None:
    fair = make_table(columns={"customer": "text"}, fair_by="customer", weights={"a": 3})
    _put(fair, "a9", priority=9)
    _put(fair, "b0", "b0", "b0")
    assert _receive(fair) == ["a9"]
    _put(fair, "a5", "a5", "a5", "a5", priority=5)
    assert [_receive(fair)[0] for _ in range(7)] == ["a5", "a5", "b0", "a5", "a5", "b0", "b0"]


def test_a_selection_finds_messages_of_lower_priorities(fair: MessageTable) -> None:
    for priority in range(4):
        _put(fair, f"a{priority}", f"a{priority}", f"a{priority}", priority=priority)
    _put(fair, "b0", "b0")
    assert {*_receive(fair, 2)} == {"a3", "b0"}
    assert [one.payload for one in fair.receive(1, where="priority = 1")] == ["a1"]
    assert [one.payload for one in fair.receive(9, where="priority = 1")] == ["a1", "a1"]
    assert fair.receive(9, where="priority = 1") == []
    assert sorted(_receive(fair, 9)) == ["a0", "a0", "a0", "a2", "a2", "a2", "a3", "a3", "b0"]


def test_a_key_passes_many_priorities_without_messages_in_a_few_claims(
    fair: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_keyed, "_PRIORITIES_AT_ONCE", 3)
    ids = [one for priority in range(1, 30) for one in _put(fair, "a", priority=priority)]
    _put(fair, "a0")
    assert len(fair.receive(1)) == 1
    fair.cancel(ids)
    assert _receive(fair) == ["a0"]


def test_a_full_key_gets_a_message_again_whose_lease_has_ended_below_many_priorities(
    make_table: MakeTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_keyed, "_PRIORITIES_AT_ONCE", 3)
    table = make_table(columns={"customer": "text"}, fair_by="customer", limit={"customer": 1}, ack_wait="10s")
    _put(table, "a0")
    assert _receive(table) == ["a0"]
    for priority in range(1, 6):
        _put(table, f"a{priority}", priority=priority)
    assert _receive(table) == []
    clock.move("11s")
    [again] = table.receive(9)
    assert again.payload == "a0"
    again.ack()
    assert _receive(table) == ["a5"]


def test_a_selection_finds_messages_below_many_priorities(fair: MessageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_keyed, "_PRIORITIES_AT_ONCE", 3)
    for priority in range(8):
        _put(fair, f"a{priority}", priority=priority)
    _put(fair, "b0", "b0")
    assert [one.payload for one in fair.receive(1, where="priority = 1 AND customer = 'a'")] == ["a1"]
    assert sorted(str(one.payload) for one in fair.receive(9, where="priority = 0")) == ["a0", "b0", "b0"]
    assert [one.payload for one in fair.receive(9, where="priority > 1")] == ["a7", "a6", "a5", "a4", "a3", "a2"]


def test_rows_follow_although_a_process_does_not_know_that_the_limit_was_lifted(
    make_table: MakeTable, connect: Callable[..., Database], clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 1_000)
    table = make_table(columns={"customer": "text"}, limit={"customer": 50}, ack_wait="1h")
    stale = connect(clock=clock).table("orders")
    _put(table, "a9", "a9", priority=9)
    _put(table, "a0")
    assert stale.receive(1, where="customer = 'b'") == []
    table.alter(limit=None)
    assert _receive(table) == ["a9"]
    assert _receive(stale) == ["a9"]
    assert _receive(stale, 5) == []
    assert _receive(table) == ["a0"]
