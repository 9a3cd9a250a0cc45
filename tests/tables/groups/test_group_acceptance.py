"""What groups are asked to stand by other brokers' tests of them: many consumers, rejects, what goes away by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.tables.groups import routing
from waterclock.tables.message_table import MessageTable


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_message_that_is_rejected_makes_way_for_the_next_and_keeps_its_group(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy, dead_letter="orders_dead")
    put(table, "a1", "a2", "b1")
    [first] = table.receive(1, consumer="x")
    first.dead_letter("no consumer can read it")
    assert names(table.receive(consumer="x")) == ["a2", "b1"]
    [dead] = database.table("orders_dead").receive()
    assert (dead.payload, dead.group) == ("a1", "a")


def test_rejecting_the_first_of_several_leaves_the_others_with_their_consumer(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="sequenced", dead_letter="orders_dead")
    put(table, "a1", "a2", "a3")
    first, second = table.receive(2)
    first.dead_letter("no consumer can read it")
    assert table.receive() == []
    second.ack()
    assert names(table.receive()) == ["a3"]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_members_that_are_deleted_for_their_age_are_not_waited_for(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, policy: str
) -> None:
    table = make_table(groups=policy)
    put(table, "a1", "a2", "b1")
    assert names(table.receive(1, consumer="x")) == ["a1"]
    put(table, "a3")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM orders WHERE id IN (1, 2, 3)"))
    clock.move("30s")
    assert names(table.receive(consumer="x")) == ["a3"]
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM orders"))
    put(table, "a4", "b2")
    clock.move("5m")
    assert names(table.receive(consumer="x")) == ["a4", "b2"]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_four_consumers_never_have_a_group_at_once_and_see_it_in_order(
    connect: Callable[..., Database], policy: str
) -> None:
    table = connect().create_table("orders", payload="text", groups=policy, jitter=0)
    table.put_many([{"payload": str(number), "group": f"g{number % 5}"} for number in range(100)])
    has: dict[str | None, str] = {}
    handled: dict[str | None, list[int]] = {f"g{number}": [] for number in range(5)}
    lock = threading.Lock()

    broken: list[str] = []

    def consume(name: str) -> None:
        while sum(map(len, handled.values())) < 100 and not broken:
            deliveries = table.receive(7, consumer=name)
            with lock:
                for delivery in deliveries:
                    if has.setdefault(delivery.group, name) != name:
                        broken.append(f"{name} got {delivery} while {has[delivery.group]} had its group")
                    handled[delivery.group].append(int(delivery.payload))
            for delivery, following in zip(deliveries, [*deliveries[1:], None], strict=False):
                with lock:
                    if policy == "sequenced" and (following is None or following.group != delivery.group):
                        has.pop(delivery.group, None)
                    delivery.ack()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, ("v", "w", "x", "y")))
    assert not broken
    for number in range(5):
        assert handled[f"g{number}"] == list(range(number, 100, 5))


def flow_beside_a_hot_group(table: MessageTable, hot: int, small: int) -> None:
    """Take all of a hot group that may be taken, and then all the small ones, while the hot one is out."""
    rows = [{"payload": "hot", "group": "hot"}] * hot
    for start in range(0, hot, 10_000):
        table.put_many(rows[start : start + 10_000])
    table.put_many([{"payload": "small", "group": f"small {number}"} for number in range(small)])
    held = table.receive(100)
    assert names(held) == ["hot"] * 100
    taken = 0
    while deliveries := table.receive(100):
        assert set(names(deliveries)) == {"small"}
        taken += table.ack(deliveries)
    assert taken == small
    table.ack(held)
    assert names(table.receive(10)) == ["hot"] * 10


def test_small_groups_flow_next_to_a_hot_one(
    sequenced: MessageTable, limit: Callable[[ModuleType, str, int], None]
) -> None:
    limit(routing, "_ROUTED_AT_ONCE", 1_000)  # the hot group alone takes several transactions
    flow_beside_a_hot_group(sequenced, 5_000, 500)


@pytest.mark.slow
def test_ten_thousand_small_groups_flow_next_to_a_hot_one_of_a_hundred_thousand(sequenced: MessageTable) -> None:
    flow_beside_a_hot_group(sequenced, 100_000, 10_000)


def test_acks_do_not_wait_for_a_long_transaction_that_puts_into_their_group(
    sequenced: MessageTable, database: Database
) -> None:
    if sequenced._context.sql.one_writer:
        return  # a transaction that writes has the whole database there
    put(sequenced, "a1", "a2", "b1")
    first, second = sequenced.receive(2)
    with database.backend.engine.begin() as theirs:
        sequenced.put("a3", group="a", connection=theirs)
        sequenced.put("c1", group="c", connection=theirs)
        first.ack()
        put(sequenced, "a4")
        assert names(sequenced.receive()) == ["b1"]
        second.ack()
        assert names(sequenced.receive(1)) == ["a4"]
    assert names(sequenced.receive()) == ["c1"]
    assert sequenced.groups.info("a").waiting == 1
