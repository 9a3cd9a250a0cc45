"""Databases that cannot be written to: the error says why, and what only reads goes on."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc
from tests.database.processes.child import Child
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.services import Service

from waterclock.connection import connect
from waterclock.database.backend import Backend
from waterclock.database.engines.mariadb import MariadbDialect
from waterclock.database.engines.postgresql import PostgresqlDialect
from waterclock.database.engines.sqlite import SqliteDialect
from waterclock.errors import UnavailableError
from waterclock.message import Message

UNPRIVILEGED = 65534


@pytest.fixture
def open_to_all() -> Generator[Path]:
    """Give a folder that users without privileges can reach; those of pytest are their owner's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def without_privileges(work: Callable[[], str]) -> str:
    """Run something as a user whom permissions bind; the superuser is bound by none."""
    if os.getuid() != 0:
        return work()

    def work_without() -> str:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
        return work()

    return Child(work_without).go()


def filled(path: Path) -> Path:
    with connect(sqlite_with_catalogue(path)) as database:
        database.create_topic("t").append([Message("a", "b", 1, b"x")])
    return path


def read_and_try_to_write(url: str) -> str:
    with connect(url) as database:
        topic = database.topic("t")
        payloads = [message.payload for message in topic.read()]
        reasons = []
        for write in (
            lambda: topic.append([Message("a", "b", 2)]),
            lambda: database.create_topic("u"),
            lambda: topic.subscribe("s"),
            topic.roll,
        ):
            with pytest.raises(UnavailableError) as refused:
                write()
            reasons.append(str(refused.value))
        assert [message.payload for message in topic.read()] == payloads
    return f"{payloads} {' | '.join(reasons)}"


@pytest.mark.parametrize("query", ["mode=ro&uri=true", "immutable=1&uri=true"])
def test_a_file_that_is_opened_to_be_read_is_read_and_says_that_it_is_read_only(tmp_path: Path, query: str) -> None:
    path = filled(tmp_path / "x.db")
    before = path.read_bytes()
    answer = read_and_try_to_write(f"sqlite:///file:{path}?{query}")
    assert answer.startswith("[b'x']")
    assert len(re.findall(r"cannot write to [^|]*: it is read-only", answer)) == 4
    assert "full" not in answer
    assert path.read_bytes() == before


def test_reading_waits_for_no_writer_and_writes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "x.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        version = writer.execute("PRAGMA data_version").fetchone()
        writer.execute("BEGIN IMMEDIATE")
        with connect(f"sqlite:///{path}") as database:
            assert database.topics() == ["t"]
            assert [message.payload for message in database.topic("t").read()] == [b"x"]
        writer.execute("ROLLBACK")
        assert writer.execute("PRAGMA data_version").fetchone() == version
        assert path.with_name("x.db-wal").stat().st_size == 0


def test_the_ledgers_of_a_file_uri_are_next_to_the_file(tmp_path: Path) -> None:
    path = filled(tmp_path / "x.db")
    with connect(f"sqlite:///file:{path}?mode=ro&uri=true") as database:
        assert database.ledgers == f"{path}-ledgers"


@pytest.mark.parametrize(
    ("file", "folder", "reason"),
    [
        (0o444, 0o777, "read-only: its file is not writable"),
        (0o444, 0o555, "read-only"),
        (0o666, 0o555, "read-only"),
    ],
)
def test_a_file_or_a_folder_that_may_not_be_written_to_is_read(
    open_to_all: Path, file: int, folder: int, reason: str
) -> None:
    path = filled(open_to_all / "x.db")
    path.chmod(file)
    open_to_all.chmod(folder)
    answer = without_privileges(lambda: read_and_try_to_write(f"sqlite:///{path}"))
    assert answer.startswith("[b'x']"), answer
    assert answer.count(reason) == 4, answer


def test_a_database_in_use_is_read_from_a_folder_that_may_not_be_written_to(open_to_all: Path) -> None:
    path = filled(open_to_all / "x.db")
    with connect(f"sqlite:///{path}") as writer:
        writer.topic("t").append([Message("a", "b", 2, b"y")])
        for each in open_to_all.glob("x.db*"):
            if each.is_file():
                each.chmod(0o444)
        open_to_all.chmod(0o555)
        answer = without_privileges(lambda: read_and_try_to_write(f"sqlite:///{path}"))
        assert answer.startswith("[b'x', b'y']"), answer


def test_an_immutable_file_is_reopened_once_it_has_changed(open_to_all: Path) -> None:
    path = filled(open_to_all / "x.db")

    def read_twice() -> str:
        with connect(f"sqlite:///{path}") as database:
            topic = database.topic("t")
            before = len(list(topic.read()))
            os.write(asking, b"?")
            os.read(answering, 1)
            return f"{before} {len(list(topic.read()))}"

    asked, asking = os.pipe()
    answering, answer = os.pipe()
    open_to_all.chmod(0o555)
    if os.getuid() != 0:
        pytest.skip("only the superuser can change the file meanwhile")
    child = os.fork()
    if child == 0:
        os.read(asked, 1)
        with connect(f"sqlite:///{path}") as database:
            database.topic("t").append([Message("a", "b", 2, b"y")])
        os.write(answer, b"!")
        os._exit(0)
    assert without_privileges(read_twice) == "1 2"
    os.waitpid(child, 0)


def test_a_file_that_may_not_be_read_says_so(open_to_all: Path) -> None:
    path = filled(open_to_all / "x.db")
    path.chmod(0o000)

    def open_it() -> str:
        with pytest.raises(UnavailableError) as refused:
            connect(f"sqlite:///{path}")
        return str(refused.value)

    assert "permission is denied" in without_privileges(open_it)


def test_a_read_only_database_without_a_catalogue_says_that_it_needs_one(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    with pytest.raises(UnavailableError, match=r"no catalogue, and this library needs .*read-only"):
        connect(f"sqlite:///file:{empty}?mode=ro&uri=true", create=True)


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_server_that_only_reads_is_read_and_says_so(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    service: Service = request.getfixturevalue(f"{server}_server")
    with service.new_database() as url:
        with connect(url, tmp_path) as database:
            database.create_topic("t").append([Message("a", "b", 1, b"x")])

        def only_read(connection: Any, _record: object) -> None:
            with connection.cursor() as cursor:
                if server == "postgresql":
                    cursor.execute("SET default_transaction_read_only = on")
                else:
                    cursor.execute("SET SESSION TRANSACTION READ ONLY")
            connection.commit()

        with connect(url) as database:
            event.listen(database.backend.engine, "connect", only_read)
            database.close()
            topic = database.topic("t")
            with pytest.raises(UnavailableError, match=r"cannot write to .*: it is read-only \("):
                topic.append([Message("a", "b", 2)])
            assert [message.payload for message in topic.read()] == [b"x"]


class ReportedError(Exception):
    """An error as a driver reports it."""

    def __init__(self, *arguments: object, **attributes: object) -> None:
        super().__init__(*arguments)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("dialect", "error", "reason"),
    [
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_FULL), "disk is full"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_IOERR_FSYNC), "reported an error"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_READONLY), "read-only: its file"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_READONLY_DIRECTORY), "read-only: its folder"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_READONLY_DBMOVED), "moved or removed"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_CANTOPEN), "permission is denied, or"),
        (SqliteDialect(), ReportedError(sqlite_errorcode=sqlite3.SQLITE_BUSY), None),
        (SqliteDialect(), ReportedError(), None),
        (PostgresqlDialect(), ReportedError(sqlstate="53100"), "disk is full"),
        (PostgresqlDialect(), ReportedError(sqlstate="25006"), "it is read-only"),
        (PostgresqlDialect(), ReportedError(sqlstate="58030"), "reported an error"),
        (PostgresqlDialect(), ReportedError(sqlstate="40001"), None),
        (PostgresqlDialect(), ReportedError(sqlstate=None), None),
        (MariadbDialect(), ReportedError(1021, "Disk full (…)"), "disk is full"),
        (
            MariadbDialect(),
            ReportedError(1026, 'Error writing file "x" (errno: 28 "No space left on device")'),
            "disk is full",
        ),
        (
            MariadbDialect(),
            ReportedError(1026, 'Error writing file "x" (errno: 5 "I/O error")'),
            "reported an error",
        ),
        (MariadbDialect(), ReportedError(1290, "running with the --read-only option so it cannot"), "it is read-only"),
        (
            MariadbDialect(),
            ReportedError(1290, "running with the --skip-grant-tables option"),
            "a server option",
        ),
        (
            MariadbDialect(),
            ReportedError(1792, "Cannot execute statement in a READ ONLY transaction"),
            "it is read-only",
        ),
        (MariadbDialect(), ReportedError(1213, "Deadlock"), None),
        (MariadbDialect(), ReportedError(), None),
    ],
)
def test_each_reason_is_distinguished_from_the_others(dialect: Any, error: Exception, reason: str | None) -> None:
    found = dialect.refusal(exc.OperationalError("INSERT", None, error))
    assert found == reason if reason is None else reason in found


def test_the_reason_stands_in_the_error(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)

    def work(_: sa.Connection) -> None:
        broken = sqlite3.OperationalError("disk I/O error")
        broken.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise exc.OperationalError("INSERT", None, broken)

    with pytest.raises(UnavailableError, match=r"cannot write to .*: its disk or file system reported an error \(disk"):
        backend.transact(work)
    with pytest.raises(UnavailableError, match=r"cannot read .* now: its disk"), backend.snapshot() as connection:
        work(connection)
    backend.close()
