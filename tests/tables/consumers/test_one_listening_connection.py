"""On PostgreSQL all who wait in a process share one listening connection."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.services import Service

import waterclock as wc
from waterclock.tables.databases.changes import Stop
from waterclock.tables.databases.postgresql.listening_connection import WAITING, listening_connection
from waterclock.tables.databases.postgresql.waking import Listening
from waterclock.tables.message_table import MessageTable


@pytest.fixture
def table(postgresql_server: Service, tmp_path: Path) -> Generator[MessageTable]:
    with postgresql_server.new_database() as url, wc.connect(url, tmp_path) as database:
        yield database.create_table("orders", payload="text", poll_interval="1h")


def listen_for_a_moment(table: MessageTable, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Do what a receive does that waits."""
    context = table.context
    changes = context.sql.changes(context.backend, context.name)
    assert changes.arm()
    meanwhile()
    changes.wait(0, Stop())
    changes.close()


@pytest.fixture
def opened(table: MessageTable, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """List the connections that are opened to listen on."""
    found: list[object] = []
    backend = table.context.backend
    connect = backend.driver_connection

    def connect_and_tell(doing: str) -> object:
        found.append(connect(doing))
        return found[-1]

    monkeypatch.setattr(backend, "driver_connection", connect_and_tell)
    return found


def test_waits_one_after_another_share_a_connection_which_listens_to_nothing_in_between(
    table: MessageTable, opened: list[object]
) -> None:
    for _ in range(5):
        listen_for_a_moment(table)
    assert len(opened) == 1
    with table.context.backend.engine.connect() as other:
        held = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = :waiting")
        assert other.execute(held, {"waiting": WAITING}).scalar() == 0
    connection = opened[0]
    assert connection.execute("SELECT count(*) FROM pg_listening_channels()").fetchone()[0] == 0  # type: ignore[attr-defined]
    with table.subscribe():
        pass
    assert len(opened) == 1


def test_waits_at_the_same_time_share_a_connection_until_the_database_is_closed(
    table: MessageTable, opened: list[object]
) -> None:
    together = threading.Barrier(4)
    threads = [threading.Thread(target=listen_for_a_moment, args=(table, together.wait)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    table.context.backend.close()
    assert opened[0].closed  # type: ignore[attr-defined]


_ON_ONE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (query LIKE '%LISTEN%' OR query LIKE '%advisory%')
"""


def test_a_dozen_threads_wait_on_one_connection_and_each_is_woken(
    table: MessageTable, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else they would look once a second for changed options, and find the messages without being woken.
    monkeypatch.setattr("waterclock.tables.consumers.receiving.LOOK_EVERY", 3600.0)
    asleep = threading.Semaphore(0)
    wait = Listening.wait

    def tell_and_wait(self: Listening, seconds: float, stop: Stop) -> bool:
        asleep.release()
        return wait(self, seconds, stop)

    monkeypatch.setattr(Listening, "wait", tell_and_wait)
    received: queue.SimpleQueue[str] = queue.SimpleQueue()

    def receive() -> None:
        for delivery in table.receive(1, wait="10m"):
            received.put(delivery.payload)

    threads = [threading.Thread(target=receive, daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert asleep.acquire(timeout=60)
    with sa.create_engine(table.context.backend.url).connect() as other:
        assert other.execute(sa.text(_ON_ONE)).scalar() == 1
    for number in range(12):  # one at a time: those who find nothing wait again, and another one leads
        table.put(str(number))
        assert received.get(timeout=60) == str(number)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(opened) == 1


def test_a_leader_that_leaves_hands_the_connection_on(table: MessageTable) -> None:
    backend = table.context.backend
    leader, other = Listening(backend, table.name), Listening(backend, table.name)
    assert leader.arm()
    assert other.arm()
    stop_leading = Stop()
    leads = threading.Thread(target=leader.wait, args=(600, stop_leading))
    waits = threading.Thread(target=other.wait, args=(600, Stop()))
    leads.start()
    waits.start()
    stop_leading.set()
    leads.join(60)
    table.put("tea")
    waits.join(60)
    assert not waits.is_alive()
    assert other.heard
    leader.close()
    other.close()


def test_waiting_consumers_look_again_when_the_connection_breaks_or_the_database_is_closed(
    table: MessageTable, opened: list[object]
) -> None:
    backend = table.context.backend
    waiting = [Listening(backend, table.name) for _ in range(3)]

    def break_it() -> None:
        with sa.create_engine(backend.url).connect() as other:
            other.execute(sa.select(sa.func.pg_terminate_backend(opened[0].info.backend_pid)))  # type: ignore[attr-defined]

    for end in (break_it, backend.close):
        assert all(each.arm() for each in waiting)
        threads = [threading.Thread(target=each.wait, args=(600, Stop()), daemon=True) for each in waiting]
        for thread in threads:
            thread.start()
        end()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert len(opened) == 2
    for each in waiting:
        each.close()


def test_a_connection_that_broke_while_it_was_kept_is_replaced(table: MessageTable, opened: list[object]) -> None:
    listen_for_a_moment(table)
    with table.context.backend.engine.connect() as other:
        process = opened[0].info.backend_pid  # type: ignore[attr-defined]
        other.execute(sa.select(sa.func.pg_terminate_backend(process, 5000)))
    listen_for_a_moment(table)
    assert len(opened) == 2


def test_a_message_for_another_table_wakes_no_consumer_of_the_connection(table: MessageTable) -> None:
    backend = table.context.backend
    first = Listening(backend, "others")
    assert first.arm()
    first.close()
    second, stop = Listening(backend, table.name), Stop()
    assert second.arm()
    with backend.engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_notify('waterclock_others', '')"))
    second.wait(0, stop)
    assert not second.heard
    assert second.arm()
    table.put("tea")
    second.wait(60, stop)
    assert second.heard
    second.close()


def test_a_forked_process_listens_on_a_connection_of_its_own(table: MessageTable, opened: list[object]) -> None:
    waiting = Listening(table.context.backend, table.name)
    assert waiting.arm()
    child = os.fork()
    if child == 0:
        waiting.close()
        ours = listening_connection(table.context.backend)
        os._exit(0 if ours.process == os.getpid() and not opened[0].closed else 1)  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.put("tea")
    waiting.wait(60, Stop())
    assert waiting.heard
    waiting.close()
