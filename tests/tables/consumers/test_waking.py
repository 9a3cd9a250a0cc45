"""Waking consumers that wait when a message is written, by Waterclock or by plain SQL, at any moment."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import inotify_simple
import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.tables.consumers.consuming import running
from tests.work.conftest import Waiting, until
from tests.work.conftest import running as worker_running

from waterclock.connection import Database
from waterclock.connection import connect as connect_to
from waterclock.database import forking
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.databases.changes import Polling, Stop
from waterclock.tables.databases.postgresql.listening_connection import CHANNEL, WRITING, listening_connection
from waterclock.tables.databases.postgresql.waking import Listening
from waterclock.tables.databases.sqlite import waking
from waterclock.tables.databases.sqlite.waking import SqliteChanges
from waterclock.tables.message_table import MessageTable
from waterclock.work.worker import Worker

FAR = 3600.0


@pytest.fixture
def table(connect: Callable[..., Database]) -> MessageTable:
    """Give a table whose consumers would look by themselves after an hour only, on the database's own clock."""
    return connect().create_table("orders", payload="text", poll_interval="1h")


@pytest.mark.parametrize("writer", ["plain SQL", "reschedule", "nack", "closing"])
def test_a_waiting_subscriber_is_woken_for_every_way_to_make_a_message_due(
    table: MessageTable, connect: Callable[..., Database], writer: str
) -> None:
    other = connect().table("orders")
    if writer == "reschedule":
        other.put("tea", at=time.time_ns() + 10**13)
    elif writer == "nack":
        other.put("tea")
        [held] = other.receive()
    elif writer == "closing":
        other.put_many([{"payload": "coffee"}, {"payload": "tea"}])
        holder = other.subscribe()
        next(holder)
    with running(table.subscribe()) as received:
        if writer == "plain SQL":
            with other._context.backend.engine.begin() as connection:
                connection.execute(sa.text("INSERT INTO orders(id, message) VALUES (7, 'tea')"))
        elif writer == "reschedule":
            other.reschedule(1, time.time_ns())
        elif writer == "nack":
            held.nack(0)
        else:
            holder.close()
    assert received == ["tea"]


def test_room_in_a_full_cache_is_used_at_once(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", poll_interval="1h", cache_size=1)
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    with table.subscribe() as deliveries:
        first = next(deliveries)
        acker = threading.Timer(0.05, first.ack)
        acker.start()
        assert next(deliveries).payload == "b"
        acker.join()


def test_a_waiting_flag_can_be_set_before_while_and_after_a_consumer_waits() -> None:
    stop = Stop()
    stop.nudge()
    assert stop.wait(FAR)
    assert not stop.wait(0)
    setter = threading.Timer(0.01, stop.set)
    setter.start()
    assert stop.wait(FAR)
    assert stop.wait(FAR)
    setter.join()


@pytest.fixture
def watched(sqlite_url: str, tmp_path: Path) -> Generator[tuple[MessageTable, SqliteChanges]]:
    with connect_to(sqlite_url, tmp_path / "ledgers") as database:
        table = database.create_table("orders", payload="text")
        changes = SqliteChanges(database.backend)
        yield table, changes
        changes.close()


def wakes_at_a_put(table: MessageTable, changes: SqliteChanges) -> None:
    flag = Waits()
    thread = threading.Thread(target=changes.wait, args=(FAR, flag))
    thread.start()
    assert flag.begun.wait(60)
    table.put("a")
    thread.join(60)
    assert not thread.is_alive()


def test_on_linux_sqlites_log_tells_of_a_commit(
    watched: tuple[MessageTable, SqliteChanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "GLANCE_EVERY_WITH_INOTIFY", FAR)
    monkeypatch.setattr(waking, "_SHOWS_WITHIN", FAR)  # a busy disk may take longer to sync
    table, changes = watched
    wakes_at_a_put(table, changes)


def test_a_watch_of_sqlite_is_prepared_for_forks_before_it_connects(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[bool] = []

    def version(self: SqliteChanges) -> tuple[int, int]:
        prepared.append(self in forking._each())
        return 0, 0

    monkeypatch.setattr(SqliteChanges, "_version", version)
    with connect_to(sqlite_url) as database:
        SqliteChanges(database.backend)
    assert prepared == [True]


def test_other_writes_in_the_folder_wake_no_consumer_and_hide_no_wakeup(
    watched: tuple[MessageTable, SqliteChanges], tmp_path: Path
) -> None:
    _, changes = watched
    (tmp_path / "another.db-wal").write_text("x")
    assert changes._log is not None
    assert not changes._log.written()
    flag = Stop()
    flag.nudge()
    (tmp_path / "another.db-wal").write_text("y")
    changes.wait(FAR, flag)  # ends


def test_a_waiting_consumer_on_sqlite_looks_at_most_ten_times_a_second(
    watched: tuple[MessageTable, SqliteChanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, changes = watched
    flag = Waits()
    changes.wait(0.35, flag)
    assert 1 <= flag.waits <= 4


@pytest.mark.parametrize("database", [None, "", ":memory:", "/no/such/file.db"])
def test_a_database_that_is_not_a_file_is_polled(database: str | None) -> None:
    assert waking.LogWatch.of(database) is None


def test_a_consumer_waits_even_if_the_library_of_inotify_is_not_installed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    with connect_to(sqlite_url, tmp_path / "ledgers") as database:
        table = database.create_table("orders", payload="text")
        changes = SqliteChanges(database.backend)
        assert changes._log is None
        wakes_at_a_put(table, changes)
        changes.close()


@pytest.mark.parametrize("refused", [OSError("too many"), AttributeError("inotify_init1")])
def test_a_kernel_that_refuses_to_watch_leaves_no_descriptor(
    refused: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[inotify_simple.INotify] = []

    def add_watch(folder: inotify_simple.INotify, *_: object) -> None:
        made.append(folder)
        raise refused

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", add_watch)
    (tmp_path / "a.db").touch()
    assert waking.LogWatch.of(str(tmp_path / "a.db")) is None
    assert made[0].closed


class Waits(Stop):
    """A flag that tells when a consumer waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.waits = 0

    def wait_for(self, seconds: float, *descriptors: int) -> set[int]:
        self.waits += 1
        self.begun.set()
        return super().wait_for(seconds, *descriptors)


def test_polling_looks_less_and_less_often_and_shortly_again_after_something_happened() -> None:
    polling, stop = Polling(), Stop()
    intervals: list[float] = []
    for _ in range(14):
        intervals.append(polling._interval)
        polling.wait(0, stop)
    assert intervals == sorted(intervals)
    assert intervals[-1] == 0.1
    polling._waited_at -= 0.09  # a claim that finds nothing
    polling.wait(0, stop)
    assert polling._interval == 0.1
    polling._waited_at -= 1  # the handling of what was found
    polling.wait(0, stop)
    assert polling._interval < 0.01
    polling._interval = 0.1
    polling.disarm()
    assert polling._interval < 0.01


@pytest.fixture
def postgresql_table(postgresql_server: Service, tmp_path: Path) -> Generator[MessageTable]:
    with (
        postgresql_server.new_database() as url,
        connect_to(url, tmp_path / "ledgers") as database,
    ):
        yield database.create_table("orders", payload="text", poll_interval="1h")


@contextmanager
def listener(table: MessageTable) -> Generator[Callable[[], int]]:
    """Give a function that counts the notifications that came since it was asked last."""
    connection = table._context.backend.engine.raw_connection()
    driver = connection.driver_connection
    driver.rollback()
    driver.autocommit = True
    heard: list[object] = []
    driver.add_notify_handler(heard.append)
    driver.execute(f'LISTEN "{CHANNEL}{table.name}"')

    def count() -> int:
        driver.execute("SELECT 1")
        number = len(heard)
        heard.clear()
        return number

    yield count
    driver.execute("UNLISTEN *")
    driver.autocommit = False
    connection.invalidate()


def test_no_consumer_is_notified_while_none_waits_even_where_writers_overlap(postgresql_table: MessageTable) -> None:
    engine = postgresql_table._context.backend.engine
    with listener(postgresql_table) as count, engine.connect() as one, engine.connect() as two:
        postgresql_table.put("one", connection=one)
        postgresql_table.put("two", connection=two)
        one.commit()
        two.commit()
        assert count() == 0


def test_a_transaction_notifies_once_however_much_it_writes(postgresql_table: MessageTable) -> None:
    context = postgresql_table._context
    waiting = Listening(context.backend, context.name)
    assert waiting.arm()
    with listener(postgresql_table) as count, context.backend.engine.begin() as connection:
        postgresql_table.put_many([{"payload": str(number)} for number in range(10)], connection=connection)
        postgresql_table.put("more", connection=connection)
        connection.commit()
        assert count() == 1
    waiting.close()


def test_a_consumer_does_not_sleep_while_a_writer_is_under_way_that_may_not_have_seen_it(
    postgresql_table: MessageTable,
) -> None:
    context = postgresql_table._context
    waiting = Listening(context.backend, context.name)
    with context.backend.engine.connect() as writer:
        postgresql_table.put("tea", connection=writer)  # before the consumer waits, so it notifies none
        assert not waiting.arm()
        writer.commit()
    assert waiting.arm()
    assert [delivery.payload for delivery in postgresql_table.receive()] == ["tea"]
    waiting.close()


def test_a_writer_that_comes_after_a_consumer_armed_wakes_it_although_it_began_before(
    postgresql_table: MessageTable,
) -> None:
    context = postgresql_table._context
    waiting, stop = Listening(context.backend, context.name), Stop()
    with context.backend.engine.connect() as writer:
        writer.execute(sa.text("SELECT 1"))
        assert waiting.arm()
        postgresql_table.put("tea", connection=writer)
        writer.commit()
    began = time.monotonic()
    waiting.wait(FAR, stop)
    assert time.monotonic() - began < FAR / 2
    waiting.close()


def test_a_savepoint_that_was_rolled_back_holds_up_no_consumer(postgresql_table: MessageTable) -> None:
    context = postgresql_table._context
    waiting = Listening(context.backend, context.name)
    with context.backend.engine.connect() as writer:
        writer.execute(sa.text("SELECT 1"))
        nested = writer.begin_nested()
        postgresql_table.put("tea", connection=writer)
        nested.rollback()
        assert waiting.arm()
    waiting.close()


def test_a_consumer_that_works_asks_for_no_notifications(postgresql_table: MessageTable) -> None:
    context = postgresql_table._context
    waiting, stop = Listening(context.backend, context.name), Stop()
    assert waiting.arm()
    stop.nudge()
    waiting.wait(FAR, stop)
    waiting.disarm()
    with listener(postgresql_table) as count:
        postgresql_table.put("tea")
        assert count() == 0
    waiting.close()


def test_a_subscription_that_has_got_a_message_asks_for_no_notifications(postgresql_table: MessageTable) -> None:
    with postgresql_table.subscribe() as deliveries:
        wait_once(deliveries)
        postgresql_table.put("tea")
        assert next(deliveries).payload == "tea"
        with listener(postgresql_table) as count:
            postgresql_table.put("more tea")
            assert count() == 0


def test_a_worker_whose_slots_are_taken_asks_for_no_notifications(postgresql_table: MessageTable) -> None:
    handler = Waiting()
    with worker_running(Worker(postgresql_table, handler)):
        postgresql_table.put("tea")
        handler.wait_for(1)
        with listener(postgresql_table) as count:

            def puts_unnoticed() -> bool:
                count()
                postgresql_table.put("more tea")
                return count() == 0

            until(puts_unnoticed)
        handler.go_on.set()


def wait_once(deliveries: TableSubscription) -> None:
    """Wait as a worker does, until a nudge."""
    deliveries.nudge()
    assert deliveries.wait()


def test_a_consumer_that_waits_for_long_only_checks_that_the_server_answers(
    postgresql_table: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = postgresql_table._context
    waiting, others = (Listening(context.backend, context.name) for _ in range(2))
    connection = listening_connection(context.backend)
    asked: list[str] = []
    run = connection._run

    def note(statement: str, *given: Any) -> Any:
        asked.append(statement)
        return run(statement, *given)

    monkeypatch.setattr(connection, "_run", note)
    assert waiting.arm()
    asked.clear()
    for each in (waiting, others, waiting):
        each.wait(0, Stop())
        assert each.arm()
    assert asked == []
    connection._answered_at -= 3600
    assert waiting.arm()
    assert asked == ["SELECT"]
    others.disarm()
    assert asked == ["SELECT"]  # one of them waits on
    postgresql_table.put("tea")
    waiting.wait(FAR, Stop())
    assert waiting.heard
    for each in (waiting, others):
        each.close()


def test_a_claim_and_an_ack_notify_no_consumer(postgresql_table: MessageTable) -> None:
    context = postgresql_table._context
    postgresql_table.put("tea")
    waiting = Listening(context.backend, context.name)
    assert waiting.arm()
    with listener(postgresql_table) as count:
        [delivery] = postgresql_table.receive()
        delivery.ack()
        assert count() == 0
    waiting.close()


def test_puts_and_waits_that_meet_anyhow_lose_nothing(postgresql_table: MessageTable) -> None:
    received: queue.SimpleQueue[str] = queue.SimpleQueue()

    def consume() -> None:
        with postgresql_table.subscribe(limit=1) as deliveries:
            for delivery in deliveries:
                delivery.ack()
                received.put(delivery.payload)
                if delivery.payload == "299":
                    return

    consumer = threading.Thread(target=consume)
    consumer.start()
    for number in range(300):
        postgresql_table.put(str(number))
        # Now the consumer is about to wait: the next message meets it at any step of that.
        assert received.get(timeout=60) == str(number)
    consumer.join(60)
    assert not consumer.is_alive()


def test_the_locks_of_the_wake_up_are_not_left_behind(postgresql_table: MessageTable) -> None:
    context = postgresql_table._context
    waiting = Listening(context.backend, context.name)
    assert waiting.arm()
    postgresql_table.put("tea")
    waiting.close()
    held = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid IN (:one, :other)")
    locks = {"one": WRITING - 1, "other": WRITING}
    with context.backend.engine.connect() as connection:
        give_up_at = time.monotonic() + 60
        while connection.execute(held, locks).scalar():  # the server ends the session after we have left
            assert time.monotonic() < give_up_at
