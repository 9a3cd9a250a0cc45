"""Processes that are forked: each has connections of its own, beside all that its parent has open."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.database.processes.child import Child
from tests.support.moments import PATIENCE

from waterclock.connection import Database, connect
from waterclock.database import forking
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.tables.databases.changes import Stop
from waterclock.tables.databases.sqlite.waking import SqliteChanges
from waterclock.tables.message_table import MessageTable

SESSION = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}


def used(database: Database) -> MessageTable:
    """Give a table of a database whose ways to connect were all gone before, so that each pool keeps a connection."""
    table = database.create_table("orders", payload="text")
    table.put("tea")
    for delivery in table.receive():
        delivery.ack()
    table.stats()
    return table


def sessions(database: Database) -> set[int]:
    """Give the numbers of the server's sessions over which the database is spoken to."""
    backend = database.backend
    ask = sa.select(sa.literal_column(SESSION[backend.dialect.name], sa.BigInteger))

    def number(connection: SqlConnection) -> int:
        return connection.execute(ask).scalar_one()

    with backend.snapshot() as connection:
        reading = number(connection)
    return {reading, backend.transact(number), backend.transact(number, indexed=True), backend.alone(number)}


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_forked_process_has_sessions_of_its_own(database: Database) -> None:
    used(database)
    ours = sessions(database)
    child = Child(lambda: json.dumps(sorted(sessions(database))))
    theirs = json.loads(child.go())
    assert theirs
    assert ours.isdisjoint(theirs)


def test_parent_and_child_both_continue(database: Database) -> None:
    table = used(database)

    def work() -> str:
        put = [table.put(f"child {number}") for number in range(3)]
        database.close()
        return json.dumps(put)

    child = Child(work)
    mine = [table.put(f"parent {number}") for number in range(3)]
    theirs = json.loads(child.go())
    mine.append(table.put("parent 3"))
    assert len({*mine, *theirs}) == 7
    assert {delivery.id for delivery in table.receive(limit=20)} == {*mine, *theirs}


def rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT message FROM orders ORDER BY id")]


def test_writes_of_a_child_to_a_file_survive_its_parents_close(tmp_path: Path) -> None:
    path = tmp_path / "factory.db"
    database = connect(f"sqlite:///{path}")
    table = used(database)
    # It opens the file before its parent closes it: SQLite removes the log with the last process that it knows of.
    gone_on, go_on = os.pipe()

    def work() -> str:
        table.put("before")
        os.write(go_on, b"x")
        os.read(closed, 1)
        return str(table.put("after"))

    closed, close = os.pipe()
    child = Child(work)
    os.write(child._go, b"x")
    os.read(gone_on, 1)
    database.close()
    os.write(close, b"x")
    assert child.go() == "3"
    assert rows(path) == ["tea", "before", "after"]


def test_so_it_is_while_a_consumer_of_the_parent_watches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "factory.db"
    database = connect(f"sqlite:///{path}")
    table = used(database)
    changes = table.context.sql.changes(database.backend, table.name)
    child = Child(lambda: str(table.put("child")) + str(table.put("again")))
    table.put("parent")
    changes.wait(60, Stop())
    changes.close()
    database.close()
    assert child.go() == "34"
    assert rows(path) == ["tea", "parent", "child", "again"]


def test_children_append_while_threads_of_the_parent_do(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path / 'factory.db'}", timeout="2s")
    topic = database.create_topic("telemetry")
    is_over = threading.Event()

    def append(source: str) -> int:
        return topic.append([Message(source, "temperature", 1)]).count

    def append_all_the_time() -> int:
        count = append("parent")
        while not is_over.is_set():
            count += append("parent")
        return count

    def work() -> str:
        return str(sum(append("child") for _ in range(2)))

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(append_all_the_time) for _ in range(2)]
        try:
            answers = [Child(work).go() for _ in range(3)]
        finally:
            is_over.set()
    assert answers == ["2"] * 3
    sources = [message.source for message in topic.read()]
    assert sources.count("child") == 6
    assert sources.count("parent") == sum(thread.result() for thread in threads)


def test_a_child_that_cut_a_call_short_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "LONGEST_PAUSE", 0.01)
    database, other = connect(f"sqlite:///{tmp_path / 'a.db'}"), connect(f"sqlite:///{tmp_path / 'b.db'}")
    table, beside = used(database), used(other)
    is_in, go_on = threading.Event(), threading.Event()

    def stay(_: SqlConnection) -> None:
        is_in.set()
        go_on.wait(PATIENCE)

    def work() -> str:
        beside.put("child")
        with pytest.raises(
            UnavailableError, match=r"cannot use .*a\.db in this process: when the process was forked, another thread"
        ):
            table.put("child")
        with pytest.raises(UnavailableError, match=r"cannot use .*a\.db in this process"):
            table.stats()
        return "refused"

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(database.backend.transact, stay)
        is_in.wait(PATIENCE)
        child = Child(work)
        go_on.set()
        staying.result()
    assert child.go() == "refused"
    assert table.put("parent")


def test_a_fork_in_the_middle_of_a_call_of_its_own_thread_is_not_waited_for(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path / 'factory.db'}", create=True)
    with database.backend.snapshot():
        child = Child(lambda: str(database.topics()))
        with database.backend.snapshot():
            assert child.go() == "[]"


def test_an_object_that_will_connect_waits_for_a_running_fork(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path}/w.db") as database:
        changes: list[SqliteChanges] = []
        watching = threading.Thread(target=lambda: changes.append(SqliteChanges(database.backend)))
        with forking._preparing:  # held by a fork until it is over
            watching.start()
            watching.join(0.1)
            assert changes == []
        watching.join(60)
        assert len(changes) == 1
        changes[0].close()
