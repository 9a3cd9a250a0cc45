from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.support.forked import Forked
from tests.support.moments import SteppedHeartbeat
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.database.backend import Backend
from waterclock.errors import LeaseLostError
from waterclock.tables.consumers.heartbeats import heartbeat
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.timing.lease_length import beat_after

MakeTable = Callable[..., MessageTable]
SECOND = 1_000_000_000


class Pulse:
    """A heartbeat that a test makes beat, on the clock that judges the leases, too."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.began = clock.now
        self.base = time.monotonic_ns()
        self.heartbeat = SteppedHeartbeat(lambda: self.base + clock.now - self.began)

    def pass_time(self, duration: str) -> None:
        """Let time pass, and the heartbeat do what becomes due."""
        until = self.clock.now
        self.clock.move(duration)
        until, self.clock.now = self.clock.now, until
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + SECOND)
            self.heartbeat.beat()


@pytest.fixture
def pulse(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> Pulse:
    made = Pulse(clock)
    monkeypatch.setattr("waterclock.tables.consumers.delivery.heartbeat_of", lambda _backend: made.heartbeat)
    return made


def test_a_lease_is_extended_when_a_third_of_it_is_left() -> None:
    assert beat_after(30 * SECOND) == 20 * SECOND


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_message_that_is_handled_for_long_is_not_sent_again(
    make_table: MakeTable, pulse: Pulse, groups: str | None
) -> None:
    table = make_table(groups=groups)
    table.put("tea", group="g")
    [delivery] = table.receive()
    with delivery:
        pulse.pass_time("2m")  # six leases
        assert table.receive() == []
        assert delivery.lease_until > pulse.clock.now
    assert table.stats().acked == 1
    assert pulse.heartbeat.beat() is None


@pytest.mark.one_database
def test_when_the_block_ends_so_does_the_extending(orders: MessageTable, pulse: Pulse) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with pytest.raises(ZeroDivisionError), delivery:
        raise ZeroDivisionError
    assert pulse.heartbeat.beat() is None
    pulse.pass_time("31s")
    assert len(orders.receive()) == 1


def test_all_that_is_due_is_extended_in_one_statement(make_table: MakeTable, pulse: Pulse, database: Database) -> None:
    table = make_table()
    table.put_many([{"payload": "x"} for _ in range(5)])
    deliveries = table.receive()
    for delivery in deliveries:
        delivery.__enter__()
    updates: list[str] = []

    @event.listens_for(database.backend.engine, "before_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        updates.extend([statement] if statement.startswith("UPDATE") else [])

    pulse.pass_time("29s")
    assert len(updates) == 1
    assert len({delivery.lease_until for delivery in deliveries}) == 1


def test_a_lease_that_was_lost_is_known_to_the_handler_and_reported_at_the_ack(
    orders: MessageTable, pulse: Pulse
) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with pytest.raises(LeaseLostError, match=r"^cannot ack message 1"), delivery:  # noqa: PT012  # the block is what is tested
        assert not delivery.lost
        orders.reschedule(1, pulse.clock.now)
        pulse.pass_time("29s")
        assert delivery.lost


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # which lock rows
@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_lease_that_a_lock_kept_from_being_extended_is_extended_soon_after(
    make_table: MakeTable, pulse: Pulse, database: Database, groups: str | None
) -> None:
    table = make_table(groups=groups)
    table.put("tea", group="g")
    [delivery] = table.receive()
    before = delivery.lease_until
    with delivery:
        with database.backend.engine.begin() as other:
            other.execute(sa.select(table.context.rows).with_for_update())
            pulse.pass_time("22s")
            assert delivery.lease_until == before
        pulse.pass_time("4s")
        assert delivery.lease_until > before


def test_messages_behind_a_slow_handler_stay_with_its_subscription(orders: MessageTable, pulse: Pulse) -> None:
    orders.put_many([{"payload": str(number)} for number in range(3)])
    with orders.subscribe(limit=3) as deliveries:
        with next(deliveries):
            pulse.pass_time("10m")
            assert orders.receive() == []
        handled = []
        for _ in range(2):
            with next(deliveries) as delivery:
                handled.append((delivery.payload, delivery.epoch))
    assert handled == [("1", 1), ("2", 1)]


def test_without_heartbeats_a_lease_ends_in_its_time(orders: MessageTable, pulse: Pulse) -> None:
    orders.put("tea")
    with orders.subscribe(heartbeat=False) as deliveries, pytest.raises(LeaseLostError), next(deliveries):  # noqa: PT012  # the block is what is tested
        pulse.pass_time("31s")
        orders.receive()[0].ack()


@pytest.mark.one_database
def test_a_beat_that_fails_is_tried_again_soon(
    orders: MessageTable, pulse: Pulse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with delivery:
        with monkeypatch.context() as patch:
            patch.setattr(heartbeat.extending, "extend_all", _fail)
            pulse.pass_time("25s")
        assert "cannot extend the leases of 1 messages of table 'orders'" in caplog.text
        pulse.pass_time("10m")
        assert not delivery.lost


@pytest.mark.one_database
def test_beats_that_keep_failing_are_logged_once_a_minute(
    orders: MessageTable, pulse: Pulse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.alter(ack_wait="3m")
    orders.put("tea")
    [delivery] = orders.receive()
    with suppress(LeaseLostError), delivery:
        with monkeypatch.context() as patch:
            patch.setattr(heartbeat.extending, "extend_all", _fail)
            pulse.pass_time("125s")
            assert caplog.text.count("cannot extend the leases") == 1
            pulse.pass_time("54s")
            assert caplog.text.count("cannot extend the leases") == 1
            pulse.pass_time("30s")  # a busy machine may warn some seconds later
            assert caplog.text.count("cannot extend the leases") == 2
        pulse.pass_time("2s")
    assert caplog.text.count("cannot extend the leases") == 2


def _fail(*_arguments: object) -> None:
    raise LeaseLostError("the database is away")


@pytest.mark.one_database
def test_one_thread_beats_for_all_and_ends_when_it_has_nothing_to_hold(
    connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_IDLE", 0.05)
    table = connect().create_table("orders", payload="text", ack_wait="60ms")
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    first, second = table.receive()
    earlier = set(threading.enumerate())  # other tests' databases have heartbeats, too
    with first, second:
        (thread,) = (one for one in set(threading.enumerate()) - earlier if one.name == "waterclock-heartbeat")
        before = first.lease_until
        deadline = time.monotonic() + 30
        while before in (first.lease_until, second.lease_until):
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)
    thread.join(30)
    assert not thread.is_alive()
    assert table.stats().acked == 2


@pytest.mark.one_database
def test_a_table_that_does_not_answer_lets_no_lease_of_another_end(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, extended = threading.Event(), threading.Event(), threading.Event()

    def extend(deliveries: list[Any], now: int) -> None:
        if deliveries[0].context.name == "locked":
            asked.set()
            assert answers.wait(30)
        else:
            extended.set()
        for one in deliveries:
            one.beat_at = now + 3600 * SECOND

    monkeypatch.setattr(heartbeat, "_extend", extend)
    monkeypatch.setattr(heartbeat, "_IDLE", 0.01)
    made, kept = heartbeat.Heartbeat(), []
    try:
        for name, begins in (("locked", asked), ("free", extended)):
            table = make_table(name)
            table.put("tea")
            [delivery] = table.receive()
            delivery.beat_at = 0
            kept.append(delivery)
            made.keep(delivery)
            assert begins.wait(30)
    finally:
        answers.set()
        for delivery in kept:
            made.release(delivery)


@pytest.mark.usefixtures("young_heap")
def test_a_heartbeat_does_not_keep_a_database_alive(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)
    assert heartbeat.heartbeat_of(backend) is heartbeat.heartbeat_of(backend)
    gone = weakref.ref(backend)
    backend.close()
    del backend
    gc.collect()
    assert gone() is None


def test_a_process_that_is_stopped_no_longer_beats(connect: Callable[..., Database], database_url: str) -> None:
    database = connect()
    table = database.create_table("orders", payload="text", ack_wait="4s", jitter=0)
    table.put("tea")
    with Forked("tests.tables.upkeep.worker", database_url, "orders", "handle") as holder:
        try:
            assert holder.stdout.readline() == "took 1 1\n"
            # As long as it runs it keeps the message. A lease is long enough for a machine that is busy.
            _wait_for_a_beat(database)
            _wait_for_a_beat(database)
            os.kill(holder.pid, signal.SIGSTOP)
            [delivery] = table.receive(wait="30s")
            assert delivery.epoch == 2
            delivery.ack()
        finally:
            holder.kill()


def _wait_for_a_beat(database: Database) -> None:
    """Until the next beat is over: a process stopped within one keeps its transaction, and SQLite's write lock."""
    before = _lease_end(database)
    deadline = time.monotonic() + 30
    while _lease_end(database) == before:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
    assert database.table("orders").receive() == []  # waits for that lock, where the beat is committed and has it still


def _lease_end(database: Database) -> int:
    with database.backend.snapshot() as connection:
        return int(connection.execute(sa.text("SELECT time_next FROM orders")).scalar_one())
