"""Exclusive groups of a table with rebalance="join": a consumer that joins gets its share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.connections.callers import wait_until_waiting
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers, groups, message_tables
from waterclock.errors import InvalidArgumentError
from waterclock.tables.consumers.receiving import Request, seconds_until_due
from waterclock.tables.groups.rebalancing import plan_moves
from waterclock.tables.groups.routing import route
from waterclock.tables.message_table import MessageTable


@pytest.fixture
def table(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table(groups="exclusive", rebalance="join")


def begin_groups(table: MessageTable, *names: str) -> None:
    """Give groups without messages in flight to the consumer x."""
    put(table, *(f"{name}1" for name in names))
    table.ack(table.receive(10, consumer="x"))


def owners(table: MessageTable) -> dict[str, str]:
    return {info.group or "": info.owner or "" for info in table.groups.list()}


def test_a_consumer_that_joins_gets_its_share_of_the_groups_without_messages_in_flight(table: MessageTable) -> None:
    begin_groups(table, "a", "b", "c", "d")
    put(table, "a2", "b2", "c2", "d2")
    assert names(table.receive(10, consumer="y")) == ["c2", "d2"]
    assert names(table.receive(10, consumer="x")) == ["a2", "b2"]


def test_the_first_claim_of_a_consumer_returns_messages_of_the_groups_that_it_gets(
    connect: Callable[..., Database],
) -> None:
    table = connect().create_table("orders", payload="text", groups="exclusive", rebalance="join")
    begin_groups(table, "a", "b")
    put(table, "a2", "b2")
    assert names(table.receive(consumer="y")) == ["b2"]


def test_a_group_with_messages_in_flight_moves_once_they_are_acked(table: MessageTable) -> None:
    put(table, "a1", "b1")
    held = table.receive(10, consumer="x")
    assert names(held) == ["a1", "b1"]
    assert table.receive(10, consumer="y") == []
    put(table, "a2", "b2")
    assert names(table.receive(10, consumer="x")) == ["a2"]
    table.ack(held)
    assert names(table.receive(10, consumer="y")) == ["b2"]


def test_a_group_whose_leases_end_before_an_ack_moves_to_the_consumer_that_joined(
    table: MessageTable, clock: MovableClock
) -> None:
    put(table, "a1", "b1")
    table.receive(10, consumer="x")
    clock.move("20s")
    assert table.receive(consumer="y") == []
    assert table.receive(consumer="x") == []
    clock.move("11s")
    assert names(table.receive(10, consumer="x")) == ["a1"]
    assert names(table.receive(10, consumer="y")) == ["b1"]


def test_a_group_stays_free_for_others_if_the_consumer_that_joined_leaves_before_it_moves(table: MessageTable) -> None:
    put(table, "a1", "b1")
    held = table.receive(10, consumer="x")
    with table.subscribe("y"):
        table.receive(consumer="y")
        assert table.groups.info("b").state == "draining"
    put(table, "a2", "b2")
    table.ack(held)
    assert names(table.receive(10, consumer="x")) == ["a2", "b2"]


def test_a_group_goes_to_others_if_the_consumer_that_joined_dies_before_it_moves(
    table: MessageTable, clock: MovableClock
) -> None:
    put(table, "a1", "b1")
    held = table.receive(10, consumer="x")
    table.receive(consumer="y")
    for delivery in held:
        delivery.extend("5m")
    clock.move("1m")
    put(table, "a2", "b2")
    table.ack(held)
    assert names(table.receive(10, consumer="x")) == ["a2", "b2"]


def test_groups_stay_if_the_consumer_that_joins_has_no_room(table: MessageTable) -> None:
    begin_groups(table, "a", "b", "c")
    put(table, "a2", "b2", "c2")
    assert names(table.receive(10, consumer="y", max_groups=1)) == ["c2"]
    assert names(table.receive(10, consumer="z", max_groups=1)) == ["b2"]
    table.alter(rebalance="manual")
    assert table.receive(10, consumer="w") == []
    assert names(table.receive(10, consumer="x")) == ["a2"]


def test_pinned_groups_stay_and_count_for_max_groups(table: MessageTable) -> None:
    begin_groups(table, "a", "b", "c")
    table.groups.pin("d", "y")
    assert table.receive(consumer="y", max_groups=1) == []
    assert owners(table) == {"a": "x", "b": "x", "c": "x", "d": "y"}
    assert table.receive(consumer="z") == []
    assert owners(table) == {"a": "x", "b": "x", "c": "z", "d": "y"}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer
def test_other_groups_move_while_one_is_locked(table: MessageTable, database: Database) -> None:
    begin_groups(table, "a", "b", "c", "d")
    with database.begin() as connection:
        connection.execute(sa.select(groups.c.head).where(groups.c.group_id == "d").with_for_update()).all()
        assert table.receive(10, consumer="y") == []
    assert owners(table) == {"a": "x", "b": "y", "c": "y", "d": "x"}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer
@pytest.mark.parametrize("locked", [groups.c.group_id, message_tables.c.table_id], ids=["groups", "routing"])
def test_consumers_that_join_while_others_hold_locks_get_their_share_later(
    table: MessageTable, database: Database, locked: sa.Column[object]
) -> None:
    begin_groups(table, "a", "b", "c")
    with database.begin() as connection:
        connection.execute(sa.select(locked).with_for_update()).all()
        assert table.receive(10, consumer="y") == []
        assert table.receive(10, consumer="z") == []
        assert set(owners(table).values()) == {"x"}
        assert seconds_until_due(table._context, Request(consumer="y")) == 0
    assert table.receive(10, consumer="y") == []
    assert table.receive(10, consumer="z") == []
    assert sorted(owners(table).values()) == ["x", "y", "z"]
    assert not table._context.unbalanced


def test_groups_that_are_moving_to_a_consumer_count_for_max_groups(table: MessageTable) -> None:
    put(table, "a1", "b1", "c1")
    held = table.receive(10, consumer="x")
    assert table.receive(consumer="y", max_groups=1) == []
    assert table.groups.info("c").state == "draining"
    put(table, "d1")
    assert table.receive(consumer="y", max_groups=1) == []
    table.ack(held)
    assert owners(table) == {"a": "x", "b": "x", "c": "y", "d": ""}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer
def test_a_consumer_that_is_claiming_gets_no_group_until_the_next_rebalancing(
    table: MessageTable, database: Database
) -> None:
    begin_groups(table, "a", "b", "c", "d")
    table.alter(rebalance="manual")
    assert table.receive(consumer="y", max_groups=1) == []
    table.alter(rebalance="join")
    with database.begin() as connection:
        claiming = sa.select(consumers.c.name).where(consumers.c.name == "y").with_for_update()
        connection.execute(claiming.where(consumers.c.table_id == table.context.table_id)).all()
        assert table.receive(consumer="z") == []
    assert sorted(owners(table).values()) == ["x", "x", "z", "z"]
    assert table.receive(consumer="z") == []
    assert sorted(owners(table).values()) == ["x", "x", "y", "z"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer
def test_the_command_waits_for_a_consumer_that_is_claiming(table: MessageTable, database: Database) -> None:
    begin_groups(table, "a", "b")
    table.alter(rebalance="manual")
    assert table.receive(consumer="y", max_groups=1) == []
    put(table, "c1")
    with ThreadPoolExecutor(1) as pool, database.begin() as connection:
        claiming = sa.select(consumers.c.name).where(consumers.c.name == "y").with_for_update()
        connection.execute(claiming.where(consumers.c.table_id == table.context.table_id)).all()
        commanding = pool.submit(table.groups.rebalance)
        wait_until_waiting(database, 1)
        route(table.context, connection)
        of_c = groups.c.table_id == table.context.table_id, groups.c.group_id == "c"
        connection.execute(sa.update(groups).where(*of_c).values(assigned="y"))
        connection.commit()
        assert commanding.result().done == 0


@pytest.mark.one_database
def test_only_exclusive_groups_are_rebalanced(make_table: Callable[..., MessageTable]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^rebalance must be 'manual' with groups='sequenced', got 'join'"):
        make_table(groups="sequenced", rebalance="join")
    with pytest.raises(InvalidArgumentError, match=r"^rebalance must be one of 'manual', 'join', got 'never'"):
        make_table(groups="exclusive", rebalance="never")


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("owned", "limits", "counts"),
    [
        ("xxxx", {"x": None, "y": None}, {"x": 2, "y": 2}),
        ("xxxxx", {"x": None, "y": None, "z": None}, {"x": 2, "y": 2, "z": 1}),
        ("xxxxxx", {"x": None, "y": 1}, {"x": 5, "y": 1}),
        ("xy", {"x": None, "y": None}, {"x": 1, "y": 1}),
    ],
)
def test_groups_are_shared_to_within_one(owned: str, limits: dict[str, int | None], counts: dict[str, int]) -> None:
    having = {f"g{number}": owner for number, owner in enumerate(owned)}
    after = list((having | plan_moves(having, limits)).values())
    assert {name: after.count(name) for name in limits} == counts
