from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups import consumers as group_consumers
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming.group_levels import own_groups_due

SECOND = 1_000_000_000


def test_a_group_stays_with_its_consumer_and_others_take_other_groups(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2", "b1")
    [first] = exclusive.receive(1, consumer="x")
    assert names(exclusive.receive(5, consumer="y")) == ["b1"]
    first.ack()
    assert exclusive.receive(5, consumer="y") == []
    assert names(exclusive.receive(5, consumer="x")) == ["a2"]


def test_later_messages_go_to_the_owner_while_earlier_ones_are_in_its_hands(exclusive: MessageTable) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")
    put(exclusive, "a2", "a3")
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a2", "a3"]


def test_a_group_stays_with_its_consumer_while_it_is_empty(exclusive: MessageTable) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")[0].ack()
    put(exclusive, "a2")
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a2"]


def test_an_empty_group_goes_after_its_idle_time(make_table: Callable[..., MessageTable], clock: MovableClock) -> None:
    table = make_table(groups="exclusive", group_idle="5s")
    put(table, "a1")
    table.receive(consumer="x")[0].ack()
    clock.move("4s")
    put(table, "b1")
    assert names(table.receive(consumer="y")) == ["b1"]
    assert table.groups.info("a").owner == "x"
    clock.move("1s")
    put(table, "b2")
    table.receive(consumer="y")
    assert "a" not in [info.group for info in table.groups.list()]


def test_messages_of_a_dead_consumer_go_to_another_in_order(exclusive: MessageTable, clock: MovableClock) -> None:
    put(exclusive, "a1", "a2", "a3")
    lost = exclusive.receive(2, consumer="x")
    clock.move("30s")
    again = exclusive.receive(consumer="y")
    assert names(again) == ["a1", "a2", "a3"]
    assert [delivery.epoch for delivery in again] == [2, 2, 1]
    with pytest.raises(LeaseLostError):
        lost[0].ack()
    assert exclusive.receive(consumer="x") == []


def test_a_consumer_that_asks_lives_on(exclusive: MessageTable, clock: MovableClock) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")[0].ack()
    for _ in range(3):
        clock.move("20s")
        assert exclusive.receive(consumer="x") == []
    put(exclusive, "a2")
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a2"]


def test_an_extended_lease_keeps_the_consumer_alive(exclusive: MessageTable, clock: MovableClock) -> None:
    put(exclusive, "a1")
    [delivery] = exclusive.receive(consumer="x")
    delivery.extend("5m")
    clock.move("4m")
    assert exclusive.receive(consumer="y") == []
    delivery.ack()


def test_closing_returns_everything_at_once_and_counts_only_started_messages(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2", "a3")
    with exclusive.subscribe("x", limit=3) as deliveries:
        started = next(deliveries)
    again = exclusive.receive(consumer="y")
    assert [(delivery.payload, delivery.epoch) for delivery in again] == [("a1", 2), ("a2", 1), ("a3", 1)]
    with pytest.raises(LeaseLostError, match="given back when its subscription was closed"):
        started.ack()
    assert exclusive.groups.info("a").owner == "y"


def test_a_closing_consumer_also_gives_back_messages_from_receive(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2", "a3")
    [first] = exclusive.receive(1, consumer="x")
    with exclusive.subscribe("x"):
        pass
    assert names(exclusive.receive(consumer="y")) == ["a1", "a2", "a3"]
    with pytest.raises(LeaseLostError):
        first.ack()


def test_a_subscription_beats_while_a_message_takes_long(connect: Callable[..., Database]) -> None:
    database = connect()
    table = database.create_table("orders", payload="text", groups="exclusive", ack_wait="200ms")
    table.put("a1", group="a")
    lease = sa.select(consumers.c.lease_until)

    def lease_until() -> int:
        with database.backend.snapshot() as connection:
            return connection.execute(lease).scalar_one()

    with table.subscribe("x") as deliveries:
        next(deliveries)
        first = lease_until()
        while lease_until() < first + 1_000_000_000:
            pass


def test_associations_are_rows_that_another_process_sees(
    exclusive: MessageTable, connect: Callable[..., Database], clock: MovableClock
) -> None:
    put(exclusive, "a1", "a2")
    exclusive.receive(1, consumer="x")
    elsewhere = connect(clock=clock).table("orders")
    assert elsewhere.receive(consumer="y") == []
    assert elsewhere.groups.info("a").owner == "x"


def test_two_sessions_cannot_go_by_one_name_at_a_time(
    exclusive: MessageTable, connect: Callable[..., Database], clock: MovableClock
) -> None:
    put(exclusive, "a1", "a2")
    exclusive.receive(1, consumer="x")
    elsewhere = connect(clock=clock).table("orders")
    assert elsewhere.receive(consumer="x") == []
    clock.move("30s")
    assert names(elsewhere.receive(consumer="x")) == ["a1", "a2"]


def test_max_groups_limits_what_a_consumer_has(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "b1", "c1", "a2")
    assert names(exclusive.receive(10, consumer="x", max_groups=2)) == ["a1", "a2", "b1"]
    assert exclusive.receive(10, consumer="x", max_groups=2) == []
    assert names(exclusive.receive(10, consumer="y")) == ["c1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # others claim without a look at what is due
def test_a_consumer_that_raises_max_groups_gets_another_group(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "b1")
    assert names(exclusive.receive(10, consumer="x", max_groups=1)) == ["a1"]
    assert exclusive.receive(10, consumer="x", max_groups=1) == []
    assert names(exclusive.receive(10, consumer="x", max_groups=2)) == ["b1"]


def test_groups_that_a_consumer_already_has_count_for_max_groups_if_it_gets_more_of_them(
    exclusive: MessageTable,
) -> None:
    put(exclusive, "a1", "a2", "b1", "c1", "d1")
    exclusive.receive(1, consumer="x", max_groups=2)
    assert names(exclusive.receive(10, consumer="x", max_groups=2)) == ["a2", "b1"]
    assert names(exclusive.receive(10, consumer="y")) == ["c1", "d1"]


def test_a_consumer_with_more_groups_than_max_groups_keeps_them_and_gets_no_other(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "b1")
    exclusive.receive(10, consumer="x")
    put(exclusive, "a2", "c1")
    assert names(exclusive.receive(10, consumer="x", max_groups=1)) == ["a2"]


@pytest.mark.one_database
def test_max_groups_and_group_idle_are_refused_where_they_mean_nothing(
    sequenced: MessageTable, make_table: Callable[..., MessageTable]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^max_groups must be omitted .*, got 2"):
        sequenced.receive(max_groups=2)
    with pytest.raises(InvalidArgumentError, match=r"^group_idle must be omitted"):
        make_table("other", groups="sequenced", group_idle="1s")


def test_rebalancing_drains_a_group_before_it_moves(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "b1", "a2", "b2")
    first = exclusive.receive(2, consumer="x")
    assert names(first) == ["a1", "a2"]
    second = exclusive.receive(2, consumer="x")
    assert names(second) == ["b1", "b2"]
    assert exclusive.receive(consumer="y") == []
    assert (exclusive.groups.rebalance(dry_run=True).skipped, exclusive.groups.rebalance().skipped) == (1, 1)
    put(exclusive, "a3", "b3")
    assert names(exclusive.receive(consumer="x")) == ["a3"]
    assert exclusive.receive(consumer="y") == []
    exclusive.ack(second)
    assert names(exclusive.receive(consumer="y")) == ["b3"]


def test_closing_a_group_lets_it_go_once_nothing_is_in_flight(exclusive: MessageTable) -> None:
    put(exclusive, "a1", "a2")
    [first] = exclusive.receive(1, consumer="x")
    assert exclusive.groups.close("a").skipped == 1
    assert exclusive.receive(consumer="x") == []
    assert exclusive.receive(consumer="y") == []
    first.ack()
    assert names(exclusive.receive(consumer="y")) == ["a2"]


def test_a_message_that_is_not_acked_in_time_takes_those_behind_it_with_it(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")
    clock.move("20s")
    put(exclusive, "a2")
    [second] = exclusive.receive(consumer="x")
    clock.move("10s")
    again = exclusive.receive(consumer="x")
    assert [(delivery.payload, delivery.epoch) for delivery in again] == [("a1", 2), ("a2", 1)]
    with pytest.raises(LeaseLostError):
        second.ack()


def test_dropping_a_table_with_owners_leaves_nothing_behind(exclusive: MessageTable, database: Database) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")
    exclusive.drop()
    with database.backend.snapshot() as connection:
        for table in ("waterclock_groups", "waterclock_consumers"):
            assert connection.execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar() == 0


def put_groups(table: MessageTable, count: int, each: int = 1) -> None:
    table.put_many([{"payload": f"{n}.{m}", "group": f"{n:04}"} for n in range(count) for m in range(each)])


def groups_of(deliveries: list[Delivery]) -> int:
    return len({delivery.group for delivery in deliveries})


def test_the_first_to_ask_leaves_groups_to_those_that_wait(exclusive: MessageTable) -> None:
    for consumer in "xyz":
        assert exclusive.receive(consumer=consumer) == []
    put_groups(exclusive, 10, each=3)
    got = {consumer: exclusive.receive(1000, consumer=consumer) for consumer in "xyz"}
    assert {consumer: groups_of(taken) for consumer, taken in got.items()} == {"x": 4, "y": 3, "z": 3}
    assert sum(map(len, got.values())) == 30


def test_one_that_is_alone_takes_all(exclusive: MessageTable) -> None:
    put_groups(exclusive, 10)
    assert groups_of(exclusive.receive(1000, consumer="x")) == 10


def test_one_that_is_busy_or_gone_is_not_waited_for(exclusive: MessageTable, clock: MovableClock) -> None:
    put_groups(exclusive, 1)
    exclusive.receive(consumer="busy")
    with exclusive.subscribe("closed"):
        assert exclusive.receive(consumer="closed") == []
    put_groups(exclusive, 11)
    assert groups_of(exclusive.receive(1000, consumer="x")) == 10
    exclusive.receive(consumer="dead")
    clock.move("31s")
    assert groups_of(exclusive.receive(1000, consumer="y")) == 11


def test_one_that_has_no_room_for_more_is_not_waited_for(exclusive: MessageTable) -> None:
    put_groups(exclusive, 1)
    for delivery in exclusive.receive(consumer="full", max_groups=1):
        delivery.ack()
    put_groups(exclusive, 11)
    assert groups_of(exclusive.receive(1000, consumer="x")) == 10


def test_nothing_stays_because_one_that_waits_never_asks_again(exclusive: MessageTable) -> None:
    exclusive.receive(consumer="slow")
    put_groups(exclusive, 10)
    taken = [groups_of(exclusive.receive(1000, consumer="x")) for _ in range(5)]
    assert taken == [5, 3, 1, 1, 0]


def test_groups_are_shared_for_any_priorities(exclusive: MessageTable) -> None:
    exclusive.receive(consumer="y")
    exclusive.put_many([{"payload": str(n), "group": str(n), "priority": n} for n in range(6)])
    assert names(exclusive.receive(1000, consumer="x")) == ["5", "4", "3"]
    assert names(exclusive.receive(1000, consumer="y")) == ["2", "1", "0"]


@pytest.mark.parametrize("most", [4, 7])
def test_of_very_many_groups_a_share_of_those_that_were_counted_is_taken(
    exclusive: MessageTable, limit: Callable[[ModuleType, str, int], None], most: int
) -> None:
    limit(group_consumers, "_COUNTED_AT_MOST", most)
    exclusive.receive(consumer="y")
    put_groups(exclusive, 20)
    assert groups_of(exclusive.receive(1000, consumer="x")) == -(-most // 2)


def test_each_of_several_consumers_is_told_when_its_own_group_is_due(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(groups="exclusive", ack_wait="1h")  # consumers live longer than their groups wait
    owners = {"x": ("a", 3), "y": ("b", 1), "z": ("c", 2)}
    for consumer, (group, priority) in owners.items():
        table.put("1", group=group, priority=priority)
        table.ack(table.receive(5, consumer=consumer))
        table.put("2", group=group, priority=priority, delay=priority * 60 * SECOND)
    for consumer in owners:
        assert table.receive(5, consumer=consumer) == []  # routes the new messages and learns their priorities
    context = table._context
    found, now = context.backend.look(lambda own: own_groups_due(context, own, [*owners, "w"], limited=False))
    assert now == clock.now
    due = {consumer: found[consumer][0] for consumer in owners}
    assert due == {consumer: clock.now + priority * 60 * SECOND for consumer, (_, priority) in owners.items()}
    assert found["w"] == (0, True)
