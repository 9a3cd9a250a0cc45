from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError, OrderError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups import group_state, routing
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_groups_in_steps


def test_only_the_first_messages_of_a_group_are_out_until_all_are_acked(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "a3", "a4")
    first = sequenced.receive(2)
    assert names(first) == ["a1", "a2"]
    assert sequenced.receive(2) == []
    first[0].ack()
    assert sequenced.receive(2) == []
    first[1].ack()
    assert names(sequenced.receive(2)) == ["a3", "a4"]


def test_a_group_that_is_out_does_not_block_others(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "b1", "a3", "b2", "c1")
    assert names(sequenced.receive(2)) == ["a1", "a2"]
    assert names(sequenced.receive(2)) == ["b1", "b2"]
    assert names(sequenced.receive(2)) == ["c1"]


def test_one_claim_takes_messages_of_several_groups_each_in_order(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "b1", "a2", "b2", "b3")
    assert names(sequenced.receive(4)) == ["a1", "a2", "b1", "b2"]


def test_a_claim_ends_while_messages_are_put_faster_than_it_routes_them(
    sequenced: MessageTable,
    limit: Callable[[ModuleType, str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(sequenced, "a1")
    assert names(sequenced.receive()) == ["a1"]
    limit(routing, "_ROUTED_AT_ONCE", 2)
    parts = iter(range(9))

    def route_and_put_more(context: TableContext, connection: SqlConnection) -> bool:
        assert next(parts, None) is not None, "the claim does not end"
        more = routing.route_new(context, connection)
        for _ in range(3):
            connection.execute(sa.insert(context.rows).values(group_id="a"))
        return more

    monkeypatch.setattr(claim_groups_in_steps, "route_new", route_and_put_more)
    put(sequenced, *["a"] * 5)
    assert sequenced.receive() == []


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)  # the only one that names each group's positions
def test_a_claim_of_more_groups_than_a_statement_searches_takes_the_same(
    sequenced: MessageTable, limit: Callable[[ModuleType, str, int], None]
) -> None:
    for module in (claim_groups_in_steps, group_state):
        limit(module, "SEARCHED_AT_ONCE", 2)
    put(sequenced, "a1", "b1", "c1", "a2", "d1", "e1", "b2")
    claimed = sequenced.receive(10)
    assert names(claimed) == ["a1", "a2", "b1", "b2", "c1", "d1", "e1"]
    put(sequenced, "a3", "e2", "f1")
    sequenced.ack(claimed)
    assert names(sequenced.receive(10)) == ["a3", "e2", "f1"]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_group_that_always_gets_new_messages_keeps_its_place_among_groups_that_wait(
    make_table: Callable[..., MessageTable], clock: MovableClock, policy: str
) -> None:
    table = make_table(groups=policy)
    put(table, "a1", "b1", "c1")
    taken: list[str] = []
    for number in range(2, 5):
        clock.now += 1_000_000_000
        put(table, f"c{number}", f"{number}x")  # a new group each time, which is due later than "c1"
        [delivery] = table.receive(1, consumer="x")
        taken += names([delivery])
        delivery.ack()
    assert taken == ["a1", "b1", "c1"]


def test_groups_that_are_due_together_go_in_the_order_in_which_they_came(sequenced: MessageTable) -> None:
    put(sequenced, "c1", "a1", "b1", "a2", "c2")
    assert names(sequenced.receive(2)) == ["c1", "c2"]
    assert names(sequenced.receive(3)) == ["a1", "a2", "b1"]


def test_later_messages_join_the_group_and_wait(sequenced: MessageTable) -> None:
    put(sequenced, "a1")
    [first] = sequenced.receive()
    put(sequenced, "a2")
    assert sequenced.receive() == []
    first.ack()
    assert names(sequenced.receive()) == ["a2"]


def test_a_group_that_is_not_acked_is_sent_again_in_order(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1", "a2", "a3")
    first = sequenced.receive(2)
    clock.move("29s")
    assert sequenced.receive(3) == []
    clock.move("1s")
    again = sequenced.receive(3)
    assert names(again) == ["a1", "a2", "a3"]
    assert {delivery.lease_until for delivery in again} == {clock.now + 60_000_000_000}
    with pytest.raises(LeaseLostError):
        first[0].ack()


def test_a_group_that_is_sent_again_in_a_smaller_piece_is_lost_to_its_former_consumer_as_a_whole(
    sequenced: MessageTable, clock: MovableClock
) -> None:
    put(sequenced, "a1", "a2")
    _, second = sequenced.receive(2)
    clock.move("30s")
    [first_again] = sequenced.receive(1)
    first_again.ack()
    with pytest.raises(LeaseLostError):
        second.ack()
    assert names(sequenced.receive(1)) == ["a2"]


def test_an_ack_that_skips_an_earlier_message_is_refused_and_names_it(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "a3")
    deliveries = sequenced.receive(3)
    with pytest.raises(OrderError, match=r"message 3 .*before message 1") as refused:
        deliveries[2].ack()
    assert refused.value.blocking_id == 1
    with pytest.raises(OrderError):
        sequenced.ack([1, 3])
    assert sequenced.ack([2, 1]) == 2
    deliveries[2].ack()


def test_giving_a_message_back_gives_back_those_behind_it_and_delays_the_group_but_no_other(
    sequenced: MessageTable, clock: MovableClock
) -> None:
    put(sequenced, "a1", "a2", "a3", "b1")
    first, second, third = sequenced.receive(3)
    first.ack()
    second.nack("10s")
    with pytest.raises(LeaseLostError):
        third.ack()
    assert names(sequenced.receive(3)) == ["b1"]
    clock.move("10s")
    again = sequenced.receive(3)
    assert names(again) == ["a2", "a3"]
    assert [delivery.epoch for delivery in again] == [2, 1]


def test_extending_one_message_keeps_all_that_went_out_of_its_group(
    sequenced: MessageTable, clock: MovableClock
) -> None:
    put(sequenced, "a1", "a2")
    first, second = sequenced.receive()
    first.extend("5m")
    clock.move("4m")
    assert sequenced.receive() == []
    first.ack()
    second.ack()


def test_a_message_for_later_holds_its_group_from_there_on(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1")
    sequenced.put("a2", group="a", at=clock.now + 5_000_000_000)
    put(sequenced, "a3")
    [first] = sequenced.receive()
    first.ack()
    assert sequenced.receive() == []
    clock.move("5s")
    assert names(sequenced.receive()) == ["a2", "a3"]


def test_priority_orders_groups_and_not_the_messages_in_a_group(sequenced: MessageTable) -> None:
    put(sequenced, "a1")
    sequenced.put("a2", group="a", priority=9)
    sequenced.put("b1", group="b", priority=5)
    assert names(sequenced.receive()) == ["b1", "a1", "a2"]


@pytest.mark.one_database
def test_the_group_comes_from_the_argument_or_else_from_the_header(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="sequenced", group_header="customer")
    table.put("1", headers={"customer": "a"})
    table.put("2", headers={"customer": "a"}, group="b")
    assert [delivery.group for delivery in table.receive()] == ["a", "b"]


def test_messages_without_a_group_form_one_and_an_empty_name_counts_as_none(sequenced: MessageTable) -> None:
    sequenced.put("1")
    sequenced.put("2", group="")
    [first] = sequenced.receive(1)
    assert first.group is None
    assert sequenced.receive(1) == []


def test_the_order_is_that_of_putting_for_any_ids(sequenced: MessageTable) -> None:
    sequenced.put_many([{"payload": str(key), "id": key, "group": "a"} for key in (5, 3, 9, 1)])
    assert names(sequenced.receive()) == ["5", "3", "9", "1"]


def test_rescheduling_a_message_that_is_out_takes_back_those_behind_it(
    sequenced: MessageTable, clock: MovableClock
) -> None:
    put(sequenced, "a1", "a2", "a3")
    first, second, third = sequenced.receive()
    assert sequenced.reschedule(second.id, clock.now + 1_000_000_000) == 1
    first.ack()
    with pytest.raises(LeaseLostError):
        third.ack()
    assert sequenced.receive() == []
    clock.move("1s")
    assert names(sequenced.receive()) == ["a2", "a3"]


def test_an_empty_group_ends_and_begins_again(sequenced: MessageTable) -> None:
    for name in ("a1", "a2", "a3"):
        put(sequenced, name)
        [delivery] = sequenced.receive()
        delivery.ack()
        assert delivery.payload == name


@pytest.mark.both_servers
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_messages_acked_before_their_group_began_are_not_read_by_each_claim(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    assert table.receive(consumer="x") == []
    put(table, "a1", "b1")
    table.ack(1)
    table.cancel(2)
    assert table.receive(consumer="x") == []
    with database.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM orders WHERE routed <> 1")).scalar() == 0


def test_a_thousand_groups_flow_next_to_a_hot_one(sequenced: MessageTable) -> None:
    put(sequenced, *["h" + str(number) for number in range(2000)])
    sequenced.put_many([{"payload": "small", "group": f"small {number}"} for number in range(1000)])
    received = [delivery for _ in range(11) for delivery in sequenced.receive(100)]
    assert names(received).count("small") == 1000
    assert len(received) == 1100


def test_a_group_ends_after_its_last_held_back_ack(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="sequenced", ack_order="hold")
    table.put_many([{"payload": "x", "group": "a"} for _ in range(2)])
    first, second = table.receive(2)
    second.ack()
    first.ack()
    assert table.groups.list() == []


@pytest.mark.parametrize("max_attempts", [None, 1])
def test_nack_of_a_whole_claim_loses_no_message_of_a_group(
    make_table: Callable[..., MessageTable], max_attempts: int | None
) -> None:
    table = make_table(
        groups="sequenced",
        max_attempts=max_attempts,
        dead_letter="dead" if max_attempts else None,
        on_exhausted="dead_letter" if max_attempts else "block",
    )
    table.put_many([{"payload": name, "group": name[0]} for name in ("a1", "a2", "a3", "b1", "b2")])
    deliveries = table.receive(5)
    assert table.nack(deliveries) == 5
    assert not any(one.lost for one in deliveries)
    assert all(one.over for one in deliveries)


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_claim_looks_once_while_another_transaction_routes(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", payload="text")
    put(table, "a1")
    with database.backend.engine.begin() as router:
        assert try_turn(table.context, router)
        with statements_of(database.backend, "orders_unrouted_idx") as seen:
            assert table.receive(10) == []
    assert len([text for text, _ in seen if "of_unassigned" in text]) == 1
    assert names(table.receive(10)) == ["a1"]


@pytest.mark.both_servers
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_messages_that_plain_sql_copies_from_another_table_are_delivered_in_order(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    """Their columns say that they have places in a group, and perhaps a consumer."""
    copied = database.create_table("copied", groups="exclusive", payload="text")
    put(copied, "a1", "a2", "b1")
    copied.receive(1)
    table = make_table(groups=policy)
    put(table, "a3")
    assert names(table.receive(consumer="x")) == ["a3"]
    with database.begin() as connection:
        columns = [
            one["name"] for one in sa.inspect(connection).get_columns("copied") if one["name"] not in ("id", "seq")
        ]
        listed = ", ".join(columns)
        connection.exec_driver_sql(f"INSERT INTO orders ({listed}) SELECT {listed} FROM copied ORDER BY seq")  # noqa: S608  # ours
    table.ack(1)
    received = table.receive(3, consumer="x")
    assert names(received) == ["a1", "a2", "b1"]
    table.ack(received)
