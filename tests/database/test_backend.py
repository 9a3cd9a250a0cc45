from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.services import Service

from waterclock.database.backend import Backend
from waterclock.database.engines.database_url import parse_url
from waterclock.errors import ConstraintError, InvalidArgumentError, UnavailableError

pytestmark = pytest.mark.both_servers

numbers = sa.Table(
    "numbers", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("value", sa.BigInteger)
)


@pytest.fixture
def backend(database_url: str) -> Generator[Backend]:
    backend = Backend(database_url)
    numbers.create(backend.engine)
    backend.transact(lambda connection: connection.execute(sa.insert(numbers), [{"id": i, "value": 0} for i in (1, 2)]))
    yield backend
    backend.close()


def add_one(connection: sa.Connection, number: int) -> None:
    connection.execute(sa.update(numbers).where(numbers.c.id == number).values(value=numbers.c.value + 1))


def values(connection: sa.Connection) -> list[int]:
    return list(connection.execute(sa.select(numbers.c.value).order_by(numbers.c.id)).scalars())


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("nonsense", "must be a database URL"),
        (7, "must be a database URL"),
        ("oracle://x/y", "oracle"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in-memory"),
        ("mysql://me@127.0.0.1:99999/x", "must have a port from 1 to 65535"),
        ("mariadb://me@127.0.0.1:0/x", "must have a port from 1 to"),
        ("mysql://me@127.0.0.1:-1/x", "must have a port from 1 to"),
        ("mysql:///x?port=99999", "must have a port from 1 to"),
        ("postgresql://[::1]:65536/x", "must have a port from 1 to"),
        ("postgresql:///x?host=a,b&port=5432,99999", "must have a port from 1 to"),
        ("postgresql:///x?host=a:5432&host=b:99999", "must have a port from 1 to"),
        ("postgresql:///x?host=a&port=abc", "must have a port from 1 to"),
        ("sqlite://host:99999/x", "must have a port from 1 to"),
        ("sqlite:///x.db?jurnal=wal", "no option named 'jurnal'"),
    ],
)
def test_an_invalid_url_is_refused(url: str, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        Backend(url)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me@host/x",
        "postgresql://me@[::1]:65535/x",
        "postgresql:///x?host=a,b&port=5432,",
        "postgresql:///x?host=a:5432&host=b",
        "postgresql:///x?host=/run/with:colon/x",
        "postgresql:///x?host=::1",
        "postgresql:///x?host=[::1]:1",
    ],
)
def test_a_url_with_ports_or_without_is_taken(url: str) -> None:
    assert parse_url(url).database == "x"


def test_a_port_that_may_be_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidArgumentError, match="must have a port from 1 to") as refused:
        parse_url("postgresql://me:271828182/x")
    assert "271828182" not in str(refused.value)


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot open") as refused:
        Backend("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)
    with pytest.raises(UnavailableError, match="cannot open"):
        Backend(f"sqlite:///{tmp_path}/no/such/folder/x.db", create=True)


def test_a_file_other_than_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is not a database, but long enough to look like one" * 100)
    with pytest.raises(UnavailableError, match="not a database"):
        Backend(f"sqlite:///{path}")


def test_writers_that_meet_all_get_through(backend: Backend) -> None:
    writers, rounds = 6, 10
    start = threading.Barrier(writers)

    def write() -> None:
        start.wait()
        for _ in range(rounds):
            backend.transact(lambda connection: add_one(connection, 1))

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with backend.snapshot() as connection:
        assert values(connection) == [writers * rounds, 0]


def test_transactions_that_deadlock_are_run_again(backend: Backend) -> None:
    both_hold_one = threading.Barrier(2, timeout=20)
    attempts: list[int] = []

    def cross(first: int, second: int) -> None:
        def work(connection: sa.Connection) -> None:
            attempts.append(first)
            add_one(connection, first)
            if attempts.count(first) == 1 and backend.dialect.name != "sqlite":
                both_hold_one.wait()
            add_one(connection, second)

        backend.transact(work)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with backend.snapshot() as connection:
        assert values(connection) == [2, 2]
    assert len(attempts) == (2 if backend.dialect.name == "sqlite" else 3)


def test_an_sqlite_file_is_opened_and_read_while_another_writes(sqlite_url: str) -> None:
    with closing(Backend(sqlite_url, create=True)) as writing:
        file = writing.url.database
    assert file is not None
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with closing(Backend(sqlite_url)) as reading, reading.snapshot() as connection:
            assert connection.execute(sa.text("PRAGMA auto_vacuum")).scalar() == 2  # incremental


def test_a_database_that_stays_busy_is_abandoned_with_a_message(sqlite_url: str) -> None:
    backend = Backend(sqlite_url, timeout=0)
    with backend._writer.begin(), pytest.raises(UnavailableError, match="busy or did not answer for 0 s"):
        backend.transact(lambda connection: connection.execute(sa.text("SELECT 1")))
    backend.transact(lambda connection: connection.execute(sa.text("SELECT 1")))
    backend.close()


def test_an_error_that_will_not_go_away_is_not_tried_again(backend: Backend) -> None:
    attempts: list[int] = []

    def fail(connection: sa.Connection) -> None:
        attempts.append(1)
        connection.execute(sa.insert(numbers), {"id": 1, "value": 0})

    with pytest.raises(ConstraintError):
        backend.transact(fail)
    assert attempts == [1]


def test_a_snapshot_sees_one_state_and_writers_do_not_wait_for_it(backend: Backend) -> None:
    with backend.snapshot() as connection:
        before = values(connection)
        backend.transact(lambda writer: add_one(writer, 1))
        assert values(connection) == before
    with backend.snapshot() as connection:
        assert values(connection) == [1, 0]


def test_the_clock_counts_nanoseconds_and_a_given_one_takes_its_place(database_url: str) -> None:
    backend = Backend(database_url)
    with backend.snapshot() as connection:
        first, second = backend.now(connection), backend.now()
        in_sql = connection.execute(sa.select(backend.now_sql())).scalar_one()
    assert 1_600_000_000 * 10**9 < first <= second
    assert abs(in_sql - second) < 60 * 10**9
    backend.close()
    given = Backend(database_url, clock=lambda: 42)
    with given.snapshot() as connection:
        assert (given.now(), connection.execute(sa.select(given.now_sql())).scalar_one()) == (42, 42)
    given.close()


def test_the_clock_of_postgresql_is_exact_to_the_microsecond(postgresql_server: Service) -> None:
    exact = sa.cast(sa.extract("epoch", sa.func.statement_timestamp()) * 1_000_000_000, sa.BigInteger)
    with postgresql_server.new_database() as url:
        backend = Backend(url)
        with backend.snapshot() as connection:
            for _ in range(20):
                read, wanted = connection.execute(sa.select(backend.now_sql(), exact)).one()
                assert read == wanted
        backend.close()


@pytest.mark.parametrize("server", ["postgresql_server", "mariadb_server"])
def test_a_server_that_restarts_costs_a_retry_and_no_error(server: str, request: pytest.FixtureRequest) -> None:
    service: Service = request.getfixturevalue(server)
    with service.new_database() as url:
        backend = Backend(url)
        numbers.create(backend.engine)
        backend.transact(lambda connection: connection.execute(sa.insert(numbers), {"id": 1, "value": 0}))
        restarted: list[int] = []

        def work(connection: sa.Connection) -> None:
            add_one(connection, 1)
            if not restarted:
                restarted.append(1)
                service.restart(immediate=True)
            add_one(connection, 1)

        backend.transact(work)
        with backend.snapshot() as connection:
            assert values(connection) == [2]
        backend.close()


def test_a_server_that_ends_while_it_is_being_connected_to_costs_a_retry_and_no_error(
    postgresql_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgresql_server.new_database() as url:
        backend = Backend(url)
        set_up = backend.dialect.set_up_direct
        ended: list[int] = []

        def set_up_too_late(connection: Any) -> None:
            if not ended:
                ended.append(connection.info.backend_pid)
                with backend.engine.connect() as other:
                    other.execute(sa.select(sa.func.pg_terminate_backend(ended[0], 5000)))
            set_up(connection)

        monkeypatch.setattr(backend._direct, "_set_up", set_up_too_late)
        assert backend.alone(lambda own: own.scalars(sa.select(sa.literal(7)))) == [7]
        assert ended
        backend.close()
