"""On PostgreSQL a receive that waits leaves its listening connection to the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.services import Service

import waterclock as wc
from waterclock.tables.databases.changes import Stop
from waterclock.tables.databases.postgresql.waking import WAITING, Listening
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


def test_waits_at_the_same_time_keep_one_connection_when_they_are_over(
    table: MessageTable, opened: list[object]
) -> None:
    together = threading.Barrier(4)
    threads = [threading.Thread(target=listen_for_a_moment, args=(table, together.wait)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not each.closed for each in opened) == 1  # type: ignore[attr-defined]
    table.context.backend.close()
    assert all(each.closed for each in opened)  # type: ignore[attr-defined]


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
    assert not stop.wait(0, second._connection.fileno())
    table.put("tea")
    second.wait(60, stop)
    assert second._heard
    second.close()
