from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue import table_row
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.keys import key_routing
from waterclock.tables.keys.key_rows import owned
from waterclock.tables.keys.turn_search import next_turns
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_keyed
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
    dealt = deal(keys, dict(enumerate(most)), room, dict.fromkeys(keys, 1), dict.fromkeys(keys, 0))
    assert list(dealt.shares.items()) == list(got.items())
    assert not dealt.unfinished


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.lists(st.integers(1, 30), max_size=40))
def test_shares_follow_the_weights_whatever_the_sizes_of_claims(weights: list[int], rooms: list[int]) -> None:
    order = list(range(len(weights)))
    got, begun = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    most = dict.fromkeys(order, 10_000)
    for room in rooms:
        dealt = deal(order, most, room, dict(enumerate(weights)), begun)
        assert sum(dealt.shares.values()) == sum(count for _, count in dealt.visits) == room
        for key, count in dealt.shares.items():
            got[key] += count
        moved = [key for key in dealt.shares if key not in dealt.unfinished]
        order = [key for key in order if key not in moved] + moved
        begun = dict.fromkeys(order, 0) | dealt.unfinished
        turns = [got[key] / weights[key] for key in order]
        assert max(turns) - min(turns) <= 1


def test_keys_take_turns(fair: MessageTable) -> None:
    _put(fair, *(f"a{number}" for number in range(5)), "b0", "c0", "b1")
    assert [one.payload for one in fair.receive()] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_a_key_gets_as_many_messages_in_a_turn_as_its_weight(make_table: MakeTable) -> None:
    table = make_table(columns={"customer": "text"}, fair_by="customer", weights={"a": 3}, batch_size=100)
    _put(table, *(f"a{number}" for number in range(8)), *(f"b{number}" for number in range(4)), "c0", "c1", "c2")
    found = [one.payload for limit in (1, 4, 2, 5) for one in table.receive(limit)]
    assert found == ["a0", "a1", "a2", "b0", "c0", "a3", "a4", "a5", "b1", "c1", "a6", "a7"]


def test_weights_can_change(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    table = make_table(columns={"customer": "text"}, limit={"customer": 100}, weights={"a": 50})
    _put(table, *(f"a{number}" for number in range(8)), "b0", "b1", "b2")
    assert [one.payload for one in table.receive(2)] == ["a0", "a1"]
    table.alter(weights={"b": 2})
    assert [one.payload for one in table.receive(4)] == ["a2", "b0", "b1", "a3"]
    table.alter(weights=None)
    assert [one.payload for one in table.receive(2)] == ["b2", "a4"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 0}, "weights: the weight of 'a' must be an integer from 1 to 1000, got 0"),
        ({"a": 1.5}, "weights: the weight of 'a' must be an integer from 1 to 1000, got 1.5"),
        ({7: 1}, "weights: each key must be a text of 1 to 255 characters, got 7"),
        ({"": 1}, "weights: each key must be a text of 1 to 255 characters, got ''"),
        ({}, "weights must be a dict of 1 to 1000 weights by key, got {}"),
        (3, "weights must be a dict of 1 to 1000 weights by key, got 3"),
    ],
)
def test_invalid_weights_are_refused_by_name(make_table: MakeTable, weights: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        make_table(fair_by="group", weights=weights)
    assert str(refused.value) == message
    with pytest.raises(InvalidArgumentError, match=r"weights needs fair_by, limit or rate, got .* without any"):
        make_table(weights={"a": 1})


def test_turns_go_on_from_claim_to_claim_and_from_process_to_process(fair: MessageTable, database: Database) -> None:
    _put(fair, "a0", "a1", "a2", "b0", "b1", "c0", "c1")
    other = database.table("orders")
    found = [table.receive(1)[0].payload for table in (fair, other) * 3]
    assert found == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_keys_that_one_claim_has_served_keep_their_order(fair: MessageTable) -> None:
    _put(fair, *(f"{key}{number}" for key in "abc" for number in range(3)))
    found = [[one.payload for one in fair.receive(3)] for _ in range(3)]
    assert found == [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]]


@pytest.mark.both_servers
def test_each_of_many_new_keys_gets_a_message_before_one_gets_two(fair: MessageTable) -> None:
    letters = [chr(0x4E00 + number) for number in range(80)]
    _put(fair, *(f"{letter}{number}" for letter in letters for number in range(3)))
    for number in range(3):
        assert sorted(one.payload for one in fair.receive(80)) == [f"{letter}{number}" for letter in letters]


@pytest.mark.parametrize(("most", "expected"), [(1, 20), (30, 60), (100, 100)])
def test_a_small_claim_routes_few_new_messages(
    fair: MessageTable, database: Database, most: int, expected: int
) -> None:
    fair.put_many([{"payload": "x", "customer": str(number)} for number in range(120)])
    assert len(fair.receive(most)) == most
    with database.backend.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT sum(routed) FROM orders").scalar_one() == expected


def test_the_first_message_of_a_new_key_comes_within_two_messages(fair: MessageTable) -> None:
    _put(fair, *(f"a{number}" for number in range(100)))
    _one_by_one(fair, 10)
    _put(fair, "z0")
    assert "z0" in _one_by_one(fair, 2)


@pytest.mark.both_servers
def test_the_first_message_of_a_new_key_comes_next_behind_many_priorities_of_others(
    fair: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routing, "_LOOK_AHEAD_EVERY", 3600)
    _put(fair, "a", "b", "c")
    assert len(fair.receive()) == 3
    for priority in range(250):
        _put(fair, *"aabbcc", priority=priority)
    assert len(fair.receive(1)) == 1
    _put(fair, "z0")
    assert "z0" in _one_by_one(fair, 4)  # a, b, c and z, in the order of their turns


@pytest.mark.both_servers
def test_the_messages_of_a_new_key_come_in_order_if_the_newest_are_found_first(
    fair: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routing, "_LOOK_AHEAD_EVERY", 3600)
    for priority in range(250):
        _put(fair, *"aabbcc", priority=priority)
    assert len(fair.receive(1)) == 1
    new = [f"z{number:02}" for number in range(90)]
    for name in new:
        clock.move("1ms")
        _put(fair, name)
    found = [name for name in _one_by_one(fair, 12) if str(name)[0] == "z"]
    assert len(found) >= 2
    assert found == new[: len(found)]


def test_a_new_key_behind_messages_of_a_thousand_keys_that_may_send_nothing_comes_soon(
    make_table: MakeTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routing, "_LOOK_AHEAD_EVERY", 3600)
    paced = make_table(columns={"customer": "text"}, rate={"customer": "1/h"}, batch_size=100)
    rows = [{"payload": "a", "customer": f"a{number:03}"} for number in range(1000)]
    paced.put_many(rows)
    while deliveries := paced.receive(500):
        paced.ack(deliveries)
    paced.put_many(rows)
    assert not any(paced.receive(1) for _ in range(3))  # so that SQLite searches from the first key on again
    clock.move("1ms")
    _put(paced, "z0")
    assert "z0" in [one.payload for _ in range(10) for one in paced.receive(1)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # whose searches pass blocks of messages
def test_a_new_key_behind_600_blocks_of_another_comes_within_two_messages(
    fair: MessageTable, database: Database, clock: MovableClock
) -> None:
    with database.backend.engine.begin() as connection:
        for statement in (
            "ALTER SEQUENCE orders_seq_seq INCREMENT BY 1024",  # each message begins a block
            "INSERT INTO orders (id, message, customer) SELECT n, 'a', 'a' FROM generate_series(1, 600) AS n",
            "INSERT INTO orders (id, message, customer) VALUES (601, 'z0', 'z')",
        ):
            connection.exec_driver_sql(statement)
    clock.now += 10**9  # plain SQL uses the clock of the server
    assert "z0" in _one_by_one(fair, 2)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # elsewhere, all messages are locked
def test_a_message_that_changes_its_key_while_it_is_routed_gives_no_key_a_second_row(
    fair: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routing, "_ROUTED_AT_ONCE", 3)
    _put(fair, "c0")
    assert _one_by_one(fair, 1) == ["c0"]
    _put(fair, "a0", "a1", "a2", "b0")

    def look(context: TableContext, connection: SqlConnection, keys: Collection[str]) -> Any:
        found = known(context, connection, keys)
        if "b" in keys:
            assert run(database, "UPDATE orders SET customer = 'c' WHERE message = 'b0'") == 1
        return found

    known = key_routing.known
    monkeypatch.setattr(key_routing, "known", look)
    first = _one_by_one(fair, 1)
    with database.backend.engine.connect() as connection:
        names = connection.exec_driver_sql("SELECT message_key FROM waterclock_message_keys ORDER BY message_key")
        assert names.scalars().all() == ["a", "c"]
    assert {*first, *_one_by_one(fair, 3)} == {"a0", "a1", "a2", "b0"}


@pytest.mark.both_servers
def test_a_key_with_a_higher_priority_does_not_hold_up_others(fair: MessageTable) -> None:
    _put(fair, *(f"a{number}" for number in range(50)), priority=9)
    assert _one_by_one(fair, 2) == ["a0", "a1"]
    _put(fair, "b0", priority=-9)
    assert "b0" in _one_by_one(fair, 2)


@pytest.mark.both_servers
@pytest.mark.parametrize("room", [1, 3, 100])
def test_the_messages_of_a_key_go_by_priority_in_its_turns(fair: MessageTable, room: int) -> None:
    _put(fair, "a0", "b0", "b1")
    _put(fair, "a5", "c5", priority=5)
    assert _one_by_one(fair, 1) == ["a5"]
    _put(fair, "a9", "b9", priority=9)
    got = [one.payload for _ in range(-(-6 // room)) for one in fair.receive(room)]
    assert {*got[:2]} == {"b9", "c5"}  # new keys have their turns at the same time
    assert got[2] == "a9"
    assert sorted(got[3:]) == ["a0", "b0", "b1"]
    assert got.index("b0") < got.index("b1")


@pytest.mark.both_servers
@pytest.mark.parametrize("room", [1, 2, 5, 100])
def test_a_turn_of_several_messages_goes_on_in_the_next_priority(make_table: MakeTable, room: int) -> None:
    fair = make_table(columns={"customer": "text"}, fair_by="customer", weights={"a": 3}, batch_size=100)
    _put(fair, "a0", "a1", "a2", "a3", "b0", "b1", "b2")
    assert [one.payload for _ in range(4) for one in fair.receive(1)] == ["a0", "a1", "a2", "b0"]
    _put(fair, "a8", "a9", priority=7)
    _put(fair, "b9", priority=7)
    got = [one.payload for _ in range(-(-7 // room)) for one in fair.receive(room)]
    assert got == ["a8", "a9", "a3", "b9", "b1", "b2"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_claims_at_the_same_time_do_not_take_rows_of_one_key_from_each_other(
    fair: MessageTable, database: Database
) -> None:
    for priority in (0, 5, 9):
        _put(fair, "a0", "b0", priority=priority)
    assert len(fair.receive(2)) == 2
    find = partial(next_turns, fair.context, count=1, tier=0, where=None, others=True)
    with database.backend.engine.connect() as one, database.backend.engine.connect() as another:
        [(key, _)], [(other, _)] = find(one), find(another)
        assert {key, other} == {"a", "b"}
        assert owned(fair.context, one, [key], ())[0].keys() == {key}
        assert owned(fair.context, another, [other], ())[0].keys() == {other}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_of_one_passes_all_keys_that_a_stopped_claim_has_locked(fair: MessageTable, database: Database) -> None:
    fair.put_many([{"payload": "x", "customer": f"k{number:02}"} for number in range(60)])
    fair.give_back(fair.receive(60))
    assert len(fair.receive(1)) == 1  # all keys have turns
    find = partial(next_turns, fair.context, count=50, tier=0, where=None, others=True)
    with database.backend.engine.connect() as stopped:
        assert len(find(stopped)) == 50
        assert [len(fair.receive(1)) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_key_waits_while_another_claim_has_its_row_of_another_priority(
    fair: MessageTable, database: Database
) -> None:
    _put(fair, "a0", "a1", "b0")
    _put(fair, "a9", "a8", priority=5)
    assert _one_by_one(fair, 1) == ["a9"]
    other = "SELECT * FROM waterclock_message_keys WHERE message_key = 'a' AND level = -5 FOR UPDATE"
    with database.backend.engine.begin() as connection:
        assert len(connection.execute(sa.text(other)).all()) == 1
        assert [one.payload for one in fair.receive()] == ["b0"]
    assert [one.payload for one in fair.receive()] == ["a8", "a0", "a1"]


def test_a_selection_takes_turns_whatever_the_priorities(fair: MessageTable) -> None:
    _put(fair, "a0", "b0", "b1")
    _put(fair, "a9", "b9", priority=9)
    assert [one.payload for one in fair.receive(where="priority = 0")] == ["a0", "b0", "b1"]
    assert [one.payload for one in fair.receive()] == ["a9", "b9"]


@pytest.mark.both_servers
def test_a_full_key_gets_a_message_again_whose_lease_has_ended_in_another_priority(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(columns={"customer": "text"}, fair_by="customer", limit={"customer": 1}, ack_wait="10s")
    _put(table, "a0", "a1", "b0")
    _put(table, "a9", priority=9)
    assert {*_one_by_one(table, 2)} == {"a9", "b0"}
    assert table.receive() == []
    run(database, "UPDATE waterclock_message_keys SET turn = turn + 9 WHERE level = -9")  # as if it had slept
    clock.move("11s")
    assert {one.payload for one in table.receive()} == {"a9", "b0"}
    assert table.receive() == []


def test_priorities_go_before_turns_if_keys_are_only_limited(make_table: MakeTable) -> None:
    limited = make_table(columns={"customer": "text"}, limit={"customer": 5}, batch_size=100)
    _put(limited, "a0", "b0")
    _put(limited, "a1", "a2", "c0", priority=1)
    got = [one.payload for one in limited.receive()]
    assert got[:3] == ["a1", "c0", "a2"]
    assert {*got[3:]} == {"a0", "b0"}


@pytest.mark.both_servers
@pytest.mark.parametrize("options", [{"limit": {"customer": 3}}, {"fair_by": "customer"}])
def test_messages_of_the_highest_and_the_lowest_priority_are_delivered(
    make_table: MakeTable, options: dict[str, Any]
) -> None:
    table = make_table(columns={"customer": "text"}, **options)
    for name, priority in (("a0", -(2**31)), ("a1", 0), ("a2", 2**31 - 1)):
        _put(table, name, priority=priority)
    assert [one.payload for one in table.receive()] == ["a2", "a1", "a0"]


@pytest.mark.both_servers
@pytest.mark.parametrize("seed", range(3))
def test_keys_have_equal_shares_and_their_priorities_in_order_in_random_claims(
    make_table: MakeTable, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routing, "_ROUTED_AT_LEAST", 100)  # each claim finds all new messages
    draw = random.Random(seed)  # noqa: S311  # no secret
    weights = {"a": 1, "b": 2, "c": 3}
    table = make_table(columns={"customer": "text"}, fair_by="customer", weights=weights, batch_size=100)
    waiting: dict[str, list[tuple[int, str]]] = {key: [] for key in weights}
    turns = dict.fromkeys(weights, 0.0)
    for nth in range(100, 125):
        missing = {key: range(12 - len(its)) for key, its in waiting.items()}
        new = [(key, draw.choice((0, 0, 4, 9)), f"{key}{nth}-{one:02}") for key, its in missing.items() for one in its]
        table.put_many([{"payload": name, "customer": key, "priority": priority} for key, priority, name in new])
        for key, priority, name in new:
            waiting[key].append((-priority, name))
            waiting[key].sort()
        claimed = table.receive(draw.choice((1, 1, 2, 5, 11)))
        for one in claimed:
            key = str(one.payload)[0]
            assert one.payload == waiting[key].pop(0)[1]
            turns[key] += 1 / weights[key]
            assert max(turns.values()) - min(turns.values()) < 1.01
        table.ack(claimed)


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


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the other servers refuse invalid text
def test_many_messages_whose_keys_are_no_valid_text_hide_no_later_key(
    fair: MessageTable, database: Database, clock: MovableClock
) -> None:
    invalid = "INSERT INTO orders (id, message, customer) VALUES ({}, 'x', CAST(x'61F5808080' AS TEXT))"
    with database.backend.engine.begin() as connection:
        for number in range(20):
            connection.exec_driver_sql(invalid.format(number + 1))
    _put(fair, "b0")
    clock.now += 10**9
    assert _one_by_one(fair, 1) == ["b0"]


@pytest.mark.both_servers
def test_a_claim_of_one_passes_many_keys_whose_messages_were_cancelled_at_once(
    fair: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = list(fair.put_many([{"payload": "x", "customer": f"k{number % 60}"} for number in range(120)]))
    assert len(fair.receive(60)) == 60
    fair.cancel(ids)
    fair.put("live", customer="new")
    searches: list[object] = []

    def search(*of: Any, others: bool) -> Any:
        searches.append(of)
        return next_turns(*of, others=others)

    monkeypatch.setattr(claim_keyed, "next_turns", search)
    assert _one_by_one(fair, 1) == ["live"]
    assert len(searches) <= 4


def test_the_row_of_a_key_ends_if_its_last_message_is_cancelled(
    fair: MessageTable, database: Database, clock: MovableClock
) -> None:
    ids = list(fair.put_many([{"payload": "x", "customer": f"k{number}"} for number in range(5)]))
    [delivery] = fair.receive(1)
    delivery.ack()
    fair.cancel(ids)
    for _ in range(2):
        assert fair.receive(5) == []
        clock.now += 3600 * 10**9  # when the lease has ended, the key of the acked message is looked at again
    with database.backend.engine.connect() as connection:
        left = "SELECT count(*) FROM waterclock_message_keys WHERE is_due <> 3"
        assert connection.exec_driver_sql(left).scalar_one() == 0


def test_turns_do_not_start_again_after_all_keys_have_ended(
    fair: MessageTable, database: Database, clock: MovableClock
) -> None:
    """Otherwise the entries of new turns would share pages with those that an old snapshot shows."""
    turns: list[int] = []
    for _ in range(2):
        _put(fair, "a0", "a1")
        first = fair.receive(1)
        with database.backend.engine.connect() as connection:
            turns.append(connection.exec_driver_sql("SELECT turn FROM waterclock_message_keys").scalar_one())
        fair.ack([*first, *fair.receive()])
        clock.move("10min")
        assert fair.receive() == []
    assert turns[0] < turns[1]


def test_a_row_that_sleeps_longer_than_its_first_message_keeps_that_message(
    fair: MessageTable, database: Database, clock: MovableClock
) -> None:
    """A row is put off at least until the time at which it is written, and its first message may be due just before."""
    second = 1_000_000_000
    fair.put("a0", customer="a", at=clock.now + 10 * second)
    assert fair.receive() == []
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE waterclock_message_keys SET due_at = due_at + 4000000000")
    fair.put("a1", customer="a", at=clock.now + 12 * second)
    for passed, due in ((0, []), (10, ["a0"]), (2, ["a1"])):
        clock.now += passed * second
        assert [one.payload for one in fair.receive()] == due


@pytest.mark.both_servers
def test_messages_that_plain_sql_copies_back_are_delivered(fair: MessageTable, database: Database) -> None:
    """Their columns say that they are routed, but the row of their key is gone."""
    _put(fair, "a", "b")
    fair.give_back(fair.receive())
    with database.backend.engine.begin() as connection:
        columns = ", ".join(
            one["name"] for one in sa.inspect(connection).get_columns("orders") if "computed" not in one
        )
        connection.exec_driver_sql(f"CREATE TABLE saved AS SELECT {columns} FROM orders")  # noqa: S608  # ours
        connection.exec_driver_sql("UPDATE saved SET routed = 1")
    fair.ack(fair.receive())
    run(database, "DELETE FROM orders")
    assert fair.receive() == []
    run(database, "DELETE FROM waterclock_message_keys")  # PostgreSQL keeps them for some minutes
    run(database, f"INSERT INTO orders ({columns}) SELECT {columns} FROM saved")  # noqa: S608  # ours
    assert sorted(one.payload for one in fair.receive()) == ["a", "b"]
