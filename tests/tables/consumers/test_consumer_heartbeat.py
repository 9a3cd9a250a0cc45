"""Exclusive consumers stay alive by the heartbeat of their process, also while that one has other things to do."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from tests.support.moments import SteppedHeartbeat, later_each_time
from tests.tables.conftest import MovableClock
from tests.tables.grouped import lease_until

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import groups
from waterclock.errors import UnavailableError
from waterclock.tables.consumers.heartbeats import heartbeat
from waterclock.tables.consumers.heartbeats.heartbeat import Heartbeat
from waterclock.tables.groups import consumers
from waterclock.tables.message_table import MessageTable

with_locks_of_rows = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)

HOUR = 3600 * 1_000_000_000


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """A heartbeat for which everything is due, and which beats when a test asks it to."""
    made = SteppedHeartbeat(later_each_time(HOUR))
    for module in ("heartbeats.consumer_heartbeat", "delivery", "subscription"):
        monkeypatch.setattr(f"waterclock.tables.consumers.{module}.heartbeat_of", lambda _backend: made)
    return made


def test_a_beat_renews_the_leases_of_all_consumers(
    exclusive: MessageTable, database: Database, clock: MovableClock, later: Heartbeat
) -> None:
    exclusive.put_many([{"payload": name, "group": name} for name in "ab"])
    with exclusive.subscribe("x", limit=1) as first, exclusive.subscribe("y", limit=1) as second:
        next(first)
        next(second)
        clock.move("20s")
        later.beat()
        assert [lease_until(database, name) for name in "xy"] == [clock.now + 30_000_000_000] * 2
    assert later.beat() is None
    assert lease_until(database, "x") is None


def test_one_statement_renews_all_consumers_of_a_process(
    exclusive: MessageTable, later: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing = Mock(wraps=consumers.renew_all)
    monkeypatch.setattr(consumers, "renew_all", renewing)
    with exclusive.subscribe("x"), exclusive.subscribe("y"):
        later.beat()
        [names] = [call.args[2] for call in renewing.call_args_list]
        assert set(names) == {"x", "y"}


def test_a_consumer_whose_row_is_locked_does_not_keep_others_from_being_renewed(
    exclusive: MessageTable, later: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[str] = []

    def renew(_context: object, _connection: object, names: list[str]) -> None:
        if "x" in names:
            raise UnavailableError("the row is locked")
        renewed.extend(names)

    monkeypatch.setattr(consumers, "renew_all", renew)
    with exclusive.subscribe("x"), exclusive.subscribe("y"):
        later.beat()
        later.beat()
    assert "y" in renewed


@pytest.mark.one_database
def test_exclusive_subscriptions_start_no_thread_of_their_own(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", groups="exclusive")
    earlier = set(threading.enumerate())
    with table.subscribe("x"), table.subscribe("y"), table.subscribe("z"):
        started = [one.name for one in set(threading.enumerate()) - earlier]
        assert started.count("waterclock-heartbeat") == 1
        assert not [name for name in started if "x" in name.split()]


@with_locks_of_rows
def test_a_locked_group_does_not_block_other_consumers(
    exclusive: MessageTable, database: Database, clock: MovableClock, later: Heartbeat
) -> None:
    exclusive.alter(ack_wait="3s")
    exclusive.put_many([{"payload": "a1", "group": "a"}, {"payload": "a2", "group": "a"}])
    with exclusive.subscribe("x", limit=2) as deliveries, next(deliveries) as delivery:
        clock.move("2s")
        before = delivery.lease_until
        with database.backend.engine.begin() as other:
            other.execute(sa.select(groups).where(groups.c.group_id == "a").with_for_update())
            later.beat()
            assert lease_until(database, "x") == clock.now + 3_000_000_000
            assert (delivery.lease_until, delivery.lost) == (before, False)
        delivery.beat_at = 0
        later.beat()
        assert delivery.lease_until == clock.now + 3_000_000_000


@with_locks_of_rows
def test_the_lock_timeout_is_restored(database: Database) -> None:
    ask = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@innodb_lock_wait_timeout"}

    def asked() -> object:
        return database.backend.transact(
            lambda own: own.exec_driver_sql(ask[database.backend.dialect.name]).scalar_one()
        )

    before = asked()
    within = database.backend.transact_within(
        2, lambda own: own.exec_driver_sql(ask[database.backend.dialect.name]).scalar_one()
    )
    assert str(within) in {"2s", "2"}
    with pytest.raises(ZeroDivisionError):
        database.backend.transact_within(2, lambda _own: 1 / 0)
    assert asked() == before


@with_locks_of_rows
def test_a_session_that_ends_within_such_a_wait_is_said_to_have_ended(database: Database) -> None:
    kill = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}
    with pytest.raises(UnavailableError):
        database.backend.transact_within(
            0.1, lambda own: own.exec_driver_sql(kill[database.backend.dialect.name]).close()
        )


@pytest.mark.one_database
@pytest.mark.usefixtures("young_heap")
def test_a_subscription_that_is_given_up_unclosed_lets_its_consumer_go(
    exclusive: MessageTable, clock: MovableClock, later: Heartbeat
) -> None:
    exclusive.put_many([{"payload": "a1", "group": "a"}, {"payload": "a2", "group": "a"}])
    given_up = exclusive.subscribe("x", limit=1)
    next(given_up)
    given_up._changes.close()
    del given_up
    gc.collect()
    clock.move("20s")
    later.beat()
    clock.move("10s")
    assert [one.payload for one in exclusive.receive(consumer="y")] == ["a1", "a2"]


@pytest.mark.one_database
def test_nothing_is_renewed_once_a_subscription_is_closed(
    exclusive: MessageTable, database: Database, later: Heartbeat
) -> None:
    exclusive.put("a1", group="a")
    with exclusive.subscribe("x") as deliveries:
        next(deliveries)
        beating = deliveries._consumer_heartbeat
    exclusive.receive(consumer="x")
    before = lease_until(database, "x")
    beating.beat()  # type: ignore[union-attr]
    later.beat()
    assert lease_until(database, "x") == before


def test_a_renewal_that_fails_is_logged_and_tried_again(
    exclusive: MessageTable,
    database: Database,
    clock: MovableClock,
    later: Heartbeat,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_arguments: object) -> None:
        raise UnavailableError("the database is away")

    exclusive.put("a1", group="a")
    with exclusive.subscribe("x") as deliveries:
        next(deliveries)
        clock.move("10s")
        with monkeypatch.context() as patch:
            patch.setattr("waterclock.tables.groups.consumers.renew_all", fail)
            later.beat()
        assert "cannot renew the lease of consumer x of table orders: the database is away" in caplog.text
        later.beat()
        assert lease_until(database, "x") == clock.now + 30_000_000_000


def test_a_fault_in_one_beat_does_not_end_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty:
        beat_at = 0
        over = False

        def beat(self) -> None:
            self.over = True
            raise ZeroDivisionError

    class Sound:
        beat_at = 1
        over = False

        def __init__(self) -> None:
            self.beaten = threading.Event()

        def beat(self) -> None:
            self.over = True
            self.beaten.set()

    monkeypatch.setattr(heartbeat, "_IDLE", 0.01)
    made, faulty, sound = Heartbeat(), Faulty(), Sound()
    made.add(faulty)
    made.add(sound)
    assert sound.beaten.wait(30)
    assert "a heartbeat failed" in caplog.text


def test_a_table_whose_leases_cannot_be_extended_does_not_block_others(
    make_table: Callable[..., MessageTable], clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, sound = make_table("faulty"), make_table("sound")
    made = SteppedHeartbeat(later_each_time(HOUR))
    extend_all = heartbeat.extending.extend_all

    def fail_for_one(context: Any, *arguments: Any) -> Any:
        if context.name == "faulty":
            raise ZeroDivisionError
        return extend_all(context, *arguments)

    monkeypatch.setattr(heartbeat.extending, "extend_all", fail_for_one)
    faulty.put("x")
    sound.put("y")
    [first], [second] = faulty.receive(), sound.receive()
    made.keep(first)
    made.keep(second)
    clock.move("20s")
    again_at = made.beat()
    assert second.lease_until == clock.now + 30_000_000_000
    assert again_at == first.beat_at < second.beat_at


@pytest.mark.parametrize(("lease", "patience", "pause"), [(0.1, 0.25, 0.1), (6, 0.5, 0.5), (30, 2.5, 1), (3600, 5, 1)])
def test_a_beat_that_fails_leaves_time_for_others_within_the_lease(lease: float, patience: float, pause: float) -> None:
    length = int(lease * 1_000_000_000)
    assert heartbeat.patience_of(length) == patience
    assert heartbeat.retry_after(length) == pause * 1_000_000_000


def test_a_forked_process_does_not_beat_for_the_one_it_came_from(
    exclusive: MessageTable, database: Database, clock: MovableClock, later: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    exclusive.put("a1", group="a")
    with exclusive.subscribe("x") as deliveries:
        next(deliveries)
        before = lease_until(database, "x")
        clock.move("20s")
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            later.beat()
            assert lease_until(database, "x") == before


def test_an_open_subscription_is_not_renewed_after_its_database_was_closed(
    connect: Callable[..., Database], clock: MovableClock, later: Heartbeat
) -> None:
    closed, database = connect(clock=clock), connect(clock=clock)
    deliveries = closed.create_table("orders", payload="text", groups="exclusive").subscribe("x")
    orders = database.table("orders")
    orders.put("a1", group="a")
    next(deliveries).ack()
    orders.put("a2", group="a")
    closed.close()
    later.beat()
    clock.move("31s")
    later.beat()
    with orders.subscribe("y") as others:
        later.beat()
        assert [one.payload for one in others.take(1)] == ["a2"]
    deliveries.close()
