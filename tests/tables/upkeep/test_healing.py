"""Groups are never stranded: when consumers are gone, and after any change by plain SQL, other consumers go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from tests.support.moments import SteppedHeartbeat, later_each_time
from tests.tables.conftest import MovableClock
from tests.tables.grouped import lease_until, names, put

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers, groups
from waterclock.errors import LeaseLostError, OrderError, UnavailableError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups import consumers as group_consumers
from waterclock.tables.groups import routing
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing import acking, dead_letters, extending
from waterclock.tables.messages.upkeep import reconcile
from waterclock.tables.model.timing import sweeps
from waterclock.time import MAX_NS

with_locks_of_rows = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests, of which each builds its statements, look again at once."""
    for share in ("SWEEP_SHARE", "_OWN_SHARE"):
        monkeypatch.setattr(sweeps, share, 0)


@contextmanager
def locked(database: Database, group: str) -> Generator[None]:
    """Hold a group's row, as a transaction that is under way does."""
    with database.backend.engine.begin() as other:
        other.execute(sa.select(groups).where(groups.c.group_id == group).with_for_update())
        yield


@pytest.fixture
def elsewhere(exclusive: MessageTable, connect: Callable[..., Database], clock: MovableClock) -> MessageTable:
    """The table as another process has it."""
    return connect(clock=clock).table(exclusive.name)


@with_locks_of_rows
def test_groups_that_are_locked_while_their_consumer_leaves_go_to_others(
    exclusive: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(exclusive, "a1", "b1")
    exclusive.receive(consumer="x")
    with locked(database, "a"):
        exclusive.subscribe("x").close()
        assert names(exclusive.receive(consumer="y")) == ["b1"]
    clock.move("1s")
    assert names(exclusive.receive(consumer="y")) == ["a1"]
    assert lease_until(database, "x") is None


@with_locks_of_rows
def test_groups_that_are_locked_when_the_lease_of_their_consumer_ends_go_to_others(
    exclusive: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(exclusive, "a1", "b1")
    exclusive.receive(consumer="x")
    clock.move("30s")
    with locked(database, "a"):
        assert names(exclusive.receive(consumer="y")) == ["b1"]
        assert exclusive.receive(consumer="x") == []  # it is over, and comes back only once all of it is released
    clock.move("1s")
    assert names(exclusive.receive(consumer="y")) == ["a1"]


@with_locks_of_rows
def test_waiting_for_locked_groups_of_dead_consumers_pauses_between_claims(
    exclusive: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(exclusive, "a1")
    exclusive.receive(consumer="x")
    clock.move("30s")
    with locked(database, "a"):
        assert exclusive.receive(consumer="y") == []
        assert (lease_until(database, "x") or 0) > clock.now


def test_a_consumer_that_comes_again_by_the_name_of_a_dead_one_keeps_that_one_not_alive(
    exclusive: MessageTable, elsewhere: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1", "a2")
    exclusive.receive(1, consumer="x")
    with elsewhere.subscribe("x") as again:
        heartbeat = again._consumer_heartbeat
        for _ in range(2):
            clock.move("10s")
            assert elsewhere.receive(consumer="x") == []
            heartbeat.beat()  # type: ignore[union-attr]
        clock.move("10s")
        assert [next(again).payload, next(again).payload] == ["a1", "a2"]


def test_the_end_of_a_second_consumer_of_a_name_leaves_the_first_what_it_has(
    exclusive: MessageTable, elsewhere: MessageTable
) -> None:
    put(exclusive, "a1", "a2")
    [first] = exclusive.receive(1, consumer="x")
    elsewhere.subscribe("x").close()
    first.ack()
    assert exclusive.receive(consumer="y") == []
    assert names(exclusive.receive(consumer="x")) == ["a2"]


def test_leased_messages_of_a_dead_consumer_are_taken_back_before_one_of_its_name_gets_later_ones(
    exclusive: MessageTable, elsewhere: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1")
    clock.move("20s")
    exclusive.receive(consumer="x")
    with exclusive._context.backend.engine.begin() as other:
        other.execute(sa.text("UPDATE waterclock_consumers SET lease_until = 0"))
    put(exclusive, "a2")
    assert names(elsewhere.receive(consumer="x")) == ["a1", "a2"]


@pytest.mark.both_servers
def test_a_group_that_is_pinned_to_another_consumer_goes_there_when_its_owner_dies(
    exclusive: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1", "a2")
    exclusive.receive(1, consumer="x")
    exclusive.groups.pin("a", "y")
    clock.move("30s")
    assert names(exclusive.receive(consumer="y")) == ["a1", "a2"]


def test_a_pinned_consumer_that_returns_gets_its_leased_messages_first(
    exclusive: MessageTable, elsewhere: MessageTable, clock: MovableClock
) -> None:
    put(exclusive, "a1")
    exclusive.groups.pin("a", "x")
    [first] = exclusive.receive(consumer="x")
    first.extend("1h")
    with exclusive._context.backend.engine.begin() as other:
        other.execute(sa.text("UPDATE waterclock_consumers SET lease_until = 0"))
    put(exclusive, "a2")
    assert names(elsewhere.receive(consumer="x")) == ["a1", "a2"]


@with_locks_of_rows
def test_a_group_that_is_free_again_while_new_messages_are_routed_keeps_their_order(
    sequenced: MessageTable,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    limit: Callable[[ModuleType, str, int], None],
) -> None:
    limit(routing, "_ROUTED_AT_ONCE", 2)
    put(sequenced, "a0")
    sequenced.receive()
    put(sequenced, "a1", "a2", "a3", "a4", "b1")
    route_window = routing._route_window
    with database.backend.engine.connect() as other:
        other.execute(sa.select(groups).where(groups.c.group_id == "a").with_for_update())

        def free_after_the_first(*arguments: Any) -> bool:
            done = route_window(*arguments)
            other.rollback()
            return done

        monkeypatch.setattr(routing, "_route_window", free_after_the_first)
        for _ in range(4):
            database.backend.transact(lambda own: routing.route_new(sequenced._context, own))
    with database.backend.engine.connect() as connection:
        of_a = sa.text("SELECT message FROM orders WHERE group_id = 'a' ORDER BY position")
        assert list(connection.scalars(of_a)) == ["a0", "a1", "a2", "a3", "a4"]


@with_locks_of_rows
def test_routing_reads_few_of_the_new_messages_of_a_locked_group(
    sequenced: MessageTable,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    limit: Callable[[ModuleType, str, int], None],
) -> None:
    limit(routing, "_ROUTED_AT_ONCE", 2)
    put(sequenced, "a0")
    sequenced.receive()
    put(sequenced, *["a1"] * 20, "b1")
    windows: list[list[str]] = []
    route_window = routing._route_window

    def noting(context: Any, connection: Any, window: Any, passed: set[str]) -> bool:
        windows.append([row.group for row in window])
        return route_window(context, connection, window, passed)

    monkeypatch.setattr(routing, "_route_window", noting)
    with database.backend.engine.connect() as other:
        other.execute(sa.select(groups).where(groups.c.group_id == "a").with_for_update())
        database.backend.transact(lambda own: routing.route_new(sequenced._context, own))
    assert windows == [["a", "a"], ["b"]]


@with_locks_of_rows
def test_a_changed_message_is_routed_while_one_that_shares_its_place_is_locked(
    sequenced: MessageTable, database: Database, limit: Callable[[ModuleType, str, int], None]
) -> None:
    limit(routing, "_ROUTED_AT_ONCE", 2)
    put(sequenced, "a1", "b1", "c1")
    for _ in range(2):
        database.backend.transact(lambda own: routing.route_new(sequenced._context, own))
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET group_id = message"))
    with database.backend.engine.connect() as other:
        other.execute(sa.text("SELECT seq FROM orders WHERE message <> 'c1' FOR UPDATE"))
        database.backend.transact(lambda own: routing.route_new(sequenced._context, own))
        other.rollback()
    with database.backend.engine.connect() as connection:
        routed = sa.text("SELECT message FROM orders WHERE routed = 1 ORDER BY seq")
        assert list(connection.scalars(routed)) == ["c1"]


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("change", ["time_acked = 1", "time_next = 1, claim_id = NULL"])
def test_a_heartbeat_holds_on_to_the_rest_of_a_group_for_any_end_of_its_last_message(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, groups: str, change: str
) -> None:
    table = make_table(groups=groups)
    put(table, "a1", "a2")
    deliveries = table.receive(2, consumer="x")
    beating = SteppedHeartbeat(later_each_time(3600 * 1_000_000_000))
    for delivery in deliveries:
        beating.keep(delivery)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text(f"UPDATE orders SET {change} WHERE message = 'a2'"))  # noqa: S608  # ours
    clock.move("20s")
    beating.beat()
    assert [delivery.lease_until - clock.now for delivery in deliveries[:1]] == [30_000_000_000]
    assert [delivery.lost for delivery in deliveries] == [False, True]
    clock.move("20s")
    assert table.receive(consumer="y") == []


def test_an_unreadable_message_of_no_group_does_not_block_the_rest_of_its_claim(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", ungrouped="free")
    table.put_many([{"payload": name} for name in "abc"])
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET headers = '[' WHERE message = 'a'"))
    assert names(table.receive(3)) == ["b", "c"]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_an_unreadable_message_that_cannot_be_given_back_costs_no_others_of_its_claim(
    make_table: Callable[..., MessageTable],
    database: Database,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": name, "group": name[0] if groups else None} for name in ("a1", "b1", "a2")])
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET headers = '[' WHERE message = 'a1'"))
    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "nack", Mock(side_effect=UnavailableError("away")))
        if groups == "exclusive":  # the next claim finds the messages of this one, and returns the first one
            with pytest.raises(UnavailableError):
                table.receive(3, consumer="x")
        received = [] if groups == "exclusive" else table.receive(3, consumer="x")
    received += table.receive(consumer="x")
    assert sorted(names(received)) == (["b1"] if groups else ["a2", "b1"])
    table.ack(received)
    if groups:
        with database.backend.engine.begin() as plain:
            plain.execute(sa.text("UPDATE orders SET headers = NULL WHERE message = 'a1'"))
        clock.move("1m")
        assert names(table.receive(consumer="x")) == ["a1", "a2"]


def test_the_last_nack_buries_a_message_of_a_group_at_once(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="sequenced", max_attempts=1, on_exhausted="dead_letter")
    put(table, "a1", "a2")
    [first] = table.receive(1)
    first.nack()
    assert [letter["payload"] for letter in table.dead_letters()] == ["a1"]
    assert names(table.receive()) == ["a2"]


def test_the_last_nack_of_a_group_that_may_be_held_up_buries_nothing(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="sequenced", max_attempts=1, on_exhausted="block")
    put(table, "a1", "a2")
    table.receive(1)[0].nack()
    assert table.dead_letters() == []
    assert table.groups.info("a").state == "exhausted"


def test_an_unreadable_message_that_dies_leaves_its_group_to_continue_at_once(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", max_attempts=1, on_exhausted="dead_letter")
    put(table, "a1", "a2")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET headers = '[' WHERE message = 'a1'"))
    assert names(table.receive(2)) == ["a2"]


def test_a_message_in_flight_that_plain_sql_moves_to_another_group_goes_out_there_at_once(
    sequenced: MessageTable, database: Database
) -> None:
    put(sequenced, "a1", "b1")
    [moved] = sequenced.receive(1)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET group_id = 'c' WHERE message = 'a1'"))
    assert sorted(names(sequenced.receive())) == ["a1", "b1"]
    with pytest.raises(LeaseLostError):
        moved.ack()


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_group_whose_first_message_plain_sql_deletes_continues(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, max_attempts=1, on_exhausted="block", poll_interval="1ns")
    table.put("later", group="a", at=database.backend.now() + 3600 * 1_000_000_000)
    put(table, "a1", "b1", "b2", "c1")
    held_up = table.receive(3, consumer="x")
    table.nack([one for one in held_up if one.payload == "b1"])
    assert table.receive(consumer="x") == []
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("DELETE FROM orders WHERE message IN ('later', 'b1', 'c1')"))
    assert sorted(names(table.receive(consumer="x"))) == ["a1", "b2"]
    assert [one.group for one in table.groups.list()] == ["a", "b"] + ["c"] * (groups == "exclusive")


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("ack_order", ["strict", "lenient", "hold"])
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("column", ["position", "ack_held_at"])
def test_plain_sql_in_columns_of_ours_leaves_no_message_behind(
    make_table: Callable[..., MessageTable], database: Database, groups: str, ack_order: str, column: str
) -> None:
    table = make_table(groups=groups, ack_order=ack_order, poll_interval="1ns")
    put(table, "a1", "a2", "a3")
    table.nack(table.receive(1, consumer="x"), "0s")
    with database.backend.engine.begin() as plain:
        rows = sa.table("orders", sa.column("message"), sa.column(column))
        written = None if column == "position" else 1
        plain.execute(sa.update(rows).where(rows.c.message == "a1").values({column: written}))
    found: list[str] = []
    for _ in range(10):
        for one in [each for _ in range(3) for each in table.receive(1, consumer="x")]:
            with suppress(OrderError, LeaseLostError):
                one.ack()
                found.append(one.payload)
            if not (one.over or one.lost):
                table.nack([one], "0s")
    means_acked = (ack_order, column) == ("hold", "ack_held_at")
    assert sorted(found) == ["a1", "a2", "a3"][means_acked:]
    assert table.stats().acked == 3


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("change", ["assigned = 'ghost'", "drain_to = 'ghost'"])
def test_plain_sql_in_the_row_of_a_group_leaves_no_message_behind(
    make_table: Callable[..., MessageTable], database: Database, groups: str, change: str
) -> None:
    table = make_table(groups=groups, poll_interval="1ns")
    put(table, "a1", "a2")
    table.nack(table.receive(1, consumer="x"), "0s")
    table.subscribe("x").close()
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text(f"UPDATE waterclock_groups SET {change}"))  # noqa: S608  # ours
    found = [names(table.receive(consumer="y")) for _ in range(3)]
    assert [payloads for payloads in found if payloads] == [["a1", "a2"]]
    assert [one.group for one in table.groups.list()] == ["a"]


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # keeps the rows of groups that have ended
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("since", ["1h", "0s"])
def test_a_group_with_messages_that_plain_sql_marks_as_ended_stays(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, groups: str, since: str
) -> None:
    table = make_table(groups=groups, poll_interval="1ns")
    table.put("a1", group="a", at=clock.now + 7200 * 1_000_000_000)
    assert table.receive(consumer="x") == []
    table.subscribe("x").close()
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE waterclock_groups SET ended_at = :now"), {"now": clock.now})
    clock.move(since)
    assert table.receive(consumer="x") == []
    assert [one.group for one in table.groups.list()] == ["a"]
    clock.move("2h")
    assert names(table.receive(consumer="x")) == ["a1"]


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)  # the only one whose TRUNCATE restarts seq
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_group_whose_messages_were_truncated_goes_on_with_the_next_one_at_once(
    make_table: Callable[..., MessageTable],
    database: Database,
    connect: Callable[..., Database],
    clock: MovableClock,
    groups: str,
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": "later", "group": "a", "at": clock.now + 3600 * 1_000_000_000}] * 3)
    assert table.receive(consumer="x") == []
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("TRUNCATE TABLE orders"))
    put(table, "a1")
    fresh = connect(clock=clock).table("orders")
    fresh.context.sweeps.due_at = MAX_NS  # without a check
    fresh.context.sweeps._first_left = 0
    assert names(fresh.receive(consumer="y")) == ["a1"]


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("where", ["group_id = 'b'", "group_id < 'c'", "group_id > ''", "1 = 1"])
def test_groups_whose_rows_plain_sql_deletes_continue(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    clock: MovableClock,
    groups: str,
    where: str,
) -> None:
    table = make_table(groups=groups, poll_interval="1ns")
    put(table, "a1", "b1", "b2", "c1")
    table.put("first", priority=1)
    table.nack(table.receive(1, consumer="x"), "0s")
    table.subscribe("x").close()
    database = connect(clock=clock)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text(f"DELETE FROM waterclock_groups WHERE {where}"))  # noqa: S608  # ours
    found: list[str] = []
    for _ in range(4):
        found += names(database.table("orders").receive(consumer="y"))
    assert sorted(found) == ["a1", "b1", "b2", "c1", "first"]
    assert sorted(one.group or "" for one in table.groups.list()) == ["", "a", "b", "c"]


@pytest.mark.usefixtures("looking_often")
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_consumer_keeps_its_messages_if_plain_sql_deletes_the_row_of_their_group(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, poll_interval="1ns")
    put(table, "a1", "a2")
    [first] = table.receive(1, consumer="x")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("DELETE FROM waterclock_groups"))
    reconcile.heal_all(table.context)
    assert table.receive(consumer="y") == []
    first.ack()
    assert names(table.receive(consumer="x")) == ["a2"]


def test_a_pinned_sequenced_group_stays_with_its_consumer(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1")
    sequenced.groups.pin("a", "x")
    for _ in range(3):
        clock.move("40s")
        assert sequenced.receive(consumer="y") == []
    assert names(sequenced.receive(consumer="x")) == ["a1"]


def test_a_group_of_an_owner_whose_row_is_gone_goes_to_others(exclusive: MessageTable, database: Database) -> None:
    put(exclusive, "a1", "a2")
    [first] = exclusive.receive(1, consumer="x")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.delete(consumers))
    assert names(exclusive.receive(consumer="y")) == ["a1", "a2"]
    with pytest.raises(LeaseLostError):
        first.ack()


@pytest.mark.usefixtures("looking_often")
def test_groups_are_looked_through_a_piece_at_a_time(
    sequenced: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_CHUNK", "LARGEST_CHUNK"):
        monkeypatch.setattr(sweeps, name, 2)
    monkeypatch.setattr(sweeps, "_CHUNK_TAKES", 0)
    sequenced.alter(poll_interval="1ns")
    later = database.backend.now() + 3600 * 1_000_000_000
    sequenced.put_many([{"payload": "later", "group": name, "at": later} for name in "abcde"])
    put(sequenced, "e2")
    assert sequenced.receive() == []
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("DELETE FROM orders WHERE message = 'later'"))
    found = [names(sequenced.receive()) for _ in range(20)]
    assert [payloads for payloads in found if payloads] == [["e2"]]


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("options", [{"max_attempts": None}, {"on_exhausted": "dead_letter"}, {"max_attempts": 2}])
def test_a_group_that_was_held_up_continues_under_options_that_let_it(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr("waterclock.tables.catalogue.table_row.LOOK_EVERY", math.inf)
    table = make_table(groups=groups, max_attempts=1, on_exhausted="block")
    put(table, "a1", "a2")
    table.receive(1, consumer="x")
    clock.move("30s")
    assert table.receive(consumer="y") == []
    assert table.groups.info("a").state == "exhausted"
    connect(clock=clock).table("orders").alter(**options)
    assert table.receive(consumer="y") == []  # by the options as it read them last
    found = connect(clock=clock).table("orders").receive(consumer="z")
    assert names(found) == (["a2"] if "on_exhausted" in options else ["a1", "a2"])


@with_locks_of_rows
def test_the_ack_of_the_last_message_of_a_group_waits_for_no_put_into_it(
    sequenced: MessageTable, database: Database
) -> None:
    put(sequenced, "a1")
    [only] = sequenced.receive()
    with database.backend.engine.begin() as other:
        sequenced.put("a2", group="a", connection=other)
        database.backend.transact_within(1, lambda own: acking.ack_leased(sequenced._context, own, [only.leased]))
    assert names(sequenced.receive()) == ["a2"]


def test_explain_says_why_a_group_of_a_dead_consumer_waits(exclusive: MessageTable, clock: MovableClock) -> None:
    exclusive.put_many([{"id": 1, "payload": "a1", "group": "a"}, {"id": 2, "payload": "b1", "group": "b"}])
    exclusive.groups.pin("b", "z")
    exclusive.nack(exclusive.receive(consumer="x"), delay="0s")
    assert exclusive.explain(1).state == "ready"
    clock.move("30s")
    info, pinned = exclusive.groups.info("a"), exclusive.groups.info("b")
    assert (info.hold, pinned.hold) == ("owner_away", "owner_away")
    assert "the owner of the group, x, is gone; the next consumer that claims takes it over" in str(
        exclusive.explain(1)
    )
    assert pinned.blocked_by == "the owner of the group, z, is gone; the group is pinned to it"


def test_explain_says_why_a_group_waits_after_plain_sql_deleted_a_message(
    sequenced: MessageTable, database: Database
) -> None:
    later = database.backend.now() + 3600 * 1_000_000_000
    sequenced.put_many(
        [{"id": 1, "payload": "later", "group": "a", "at": later}, {"id": 2, "payload": "x", "group": "a"}]
    )
    assert sequenced.receive() == []
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("DELETE FROM orders WHERE id = 1"))
    assert (sequenced.explain(2).state, sequenced.groups.info("a").hold) == ("unsettled", "unsettled")
    assert "every poll_interval" in str(sequenced.explain(2))


@with_locks_of_rows
def test_explain_says_why_a_locked_group_waits(sequenced: MessageTable, database: Database) -> None:
    sequenced.put("a1", id=1, group="a")
    sequenced.nack(sequenced.receive(), delay="0s")
    assert (sequenced.explain(1).state, sequenced.groups.info("a").hold) == ("ready", None)
    with locked(database, "a"):
        assert sequenced.explain(1).state == "locked"
        assert sequenced.groups.info("a").blocked_by == "an open transaction has locked its group"


@with_locks_of_rows
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_message_that_plain_sql_keeps_holds_up_its_group_alone(
    request: pytest.FixtureRequest, database: Database, policy: str
) -> None:
    table: MessageTable = request.getfixturevalue(policy)
    put = [{"id": number, "payload": f"{group}{number}", "group": group} for number, group in enumerate("aabbbc", 1)]
    table.put_many(put)
    table.groups.purge("no such group")  # gives all messages their places
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE id IN (1, 4)"))
        assert sorted(names(table.receive(1)) + names(table.receive(10))) == ["b3", "c6"]
        assert (table.explain(1).state, table.groups.info("a").hold) == ("locked", "locked")
        assert table.explain(2).state == "blocked"
    assert table.explain(1).state == "ready"
    assert sorted(names(table.receive(10)))[:2] == ["a1", "a2"]


@with_locks_of_rows
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_group_whose_lease_ended_waits_for_rows_locked_by_plain_sql(
    request: pytest.FixtureRequest, database: Database, clock: MovableClock, policy: str
) -> None:
    table: MessageTable = request.getfixturevalue(policy)
    table.put_many([{"id": number, "payload": f"a{number}", "group": "a"} for number in (1, 2)])
    assert names(table.receive(10)) == ["a1", "a2"]
    clock.move("1h")
    table.put("b3", id=3, group="b")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE id = 2"))
        assert names(table.receive(10)) == ["b3"]
    assert names(table.receive(10)) == ["a1", "a2"]


@with_locks_of_rows
@pytest.mark.parametrize("end", ["closes", "dies"])
@pytest.mark.parametrize("kept", [11, 12, 13])
def test_only_a_group_of_a_dead_consumer_waits_for_its_rows_locked_by_plain_sql(
    exclusive: MessageTable,
    database: Database,
    clock: MovableClock,
    limit: Callable[[ModuleType, str, int], None],
    end: str,
    kept: int,
) -> None:
    limit(group_consumers, "_RELEASED_AT_ONCE", 1)
    put(exclusive, "b1")
    exclusive.receive(1, consumer="x")
    exclusive.put_many([{"id": number, "payload": f"a{number}", "group": "a"} for number in (11, 12, 13)])
    assert names(exclusive.receive(2, consumer="x")) == ["a11", "a12"]
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE id = :kept"), {"kept": kept})
        if end == "closes":
            exclusive.subscribe("x").close()
        else:
            clock.move("30s")
        found = [*exclusive.receive(consumer="y"), *exclusive.receive(consumer="y")]
        assert sorted(names(found)) == (["a11", "a12"] if kept == 13 else []) + ["b1"]
        clock.move("30s")
        if kept != 13:
            assert (exclusive.groups.info("a").hold, exclusive.explain(11).state) == ("locked", "locked")
    clock.move("1s")
    found = exclusive.receive(consumer="y")
    assert [name for name in names(found) if name != "b1"] == (["a13"] if kept == 13 else ["a11", "a12", "a13"])


@pytest.mark.usefixtures("looking_often")
@with_locks_of_rows
def test_a_group_without_its_owners_row_waits_for_rows_locked_by_plain_sql(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive", poll_interval="1ns")
    put(table, "a1", "a2")
    assert names(table.receive(1, consumer="x")) == ["a1"]
    with database.backend.engine.begin() as plain:
        plain.execute(sa.delete(consumers))
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE message = 'a1'"))
        assert table.receive(consumer="y") == []
    assert names(table.receive(consumer="y")) == ["a1", "a2"]


@with_locks_of_rows
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_heartbeat_extends_leases_that_plain_sql_has_not_locked(
    request: pytest.FixtureRequest, database: Database, policy: str
) -> None:
    table: MessageTable = request.getfixturevalue(policy)
    put(table, "a1", "a2", "a3")
    leased = [one.leased for one in table.receive(2)]
    before = table.receive(1)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE message IN ('a2', 'a3')"))
        hour = 3600 * 1_000_000_000
        held = database.backend.transact_within(1, lambda own: extending.extend_all(table.context, own, leased, hour))
    first, second = (held[one.seq, one.claim_id].until for one in leased)
    assert (first - second > hour // 2, len(before)) == (True, policy == "exclusive")


@pytest.mark.usefixtures("looking_often")
@with_locks_of_rows
def test_an_ack_waits_for_no_ack_behind_it_that_plain_sql_keeps(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", ack_order="hold", poll_interval="1ns")
    put(table, "a1", "a2", "a3")
    first, second, third = table.receive(3)
    table.ack([second, third])
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE message = 'a2'"))
        database.backend.transact_within(1, lambda own: acking.ack_leased(table.context, own, [first.leased]))
        assert (table.stats().acked, table.stats().held) == (1, 2)
    assert table.receive() == []
    assert table.stats().acked == 3


@with_locks_of_rows
def test_a_claim_that_removes_messages_does_not_wait_for_rows_locked_by_plain_sql(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    put(table, "a1", "a2")
    leased = [one.leased for one in table.receive(2)]
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE message = 'a1'"))
        seqs = [one.seq for one in leased]
        ours = database.backend.transact_within(
            1, lambda own: dead_letters.uncount(table.context, own, seqs, leased[0].claim_id)
        )
    assert ours == seqs[1:]


@with_locks_of_rows
def test_a_callers_ack_by_id_keeps_no_other_group_from_being_routed(
    sequenced: MessageTable, database: Database
) -> None:
    sequenced.put("a1", id=1, group="a")
    sequenced.put("b1", id=2, group="b")
    with database.backend.engine.connect() as caller:
        assert sequenced.ack([1], connection=caller) == 1
        assert names(sequenced.receive()) == ["b1"]
        caller.commit()
    assert sequenced.stats().acked == 1


@with_locks_of_rows
def test_a_caller_acks_by_id_what_it_has_put_in_the_same_transaction(
    sequenced: MessageTable, database: Database
) -> None:
    with database.backend.engine.connect() as caller:
        sequenced.put("a1", id=1, group="a", connection=caller)
        assert sequenced.ack([1], connection=caller) == 1
        caller.commit()
    assert sequenced.receive() == []
    assert sequenced.stats().acked == 1
