"""What a database refuses reaches the caller as an error of ours, with the driver's attached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.backend import Backend

pytestmark = pytest.mark.both_servers

numbers = sa.Table(
    "numbers",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("text", sa.Text, sa.CheckConstraint("text <> 'refused'")),
)
insert = sa.insert(numbers)
WAYS = {
    "a transaction": lambda backend, work: backend.transact(work),
    "a frequent transaction": lambda backend, work: backend.transact(work, indexed=True),
    "statements alone": lambda backend, work: backend.alone(work),
}


@pytest.fixture
def backend(database_url: str) -> Generator[Backend]:
    with closing(Backend(database_url)) as backend:
        numbers.create(backend.engine)
        yield backend


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("statement", "values", "kind"),
    [
        (sa.text("SELECT nothing FROM nowhere"), None, wc.RefusedError),
        (insert, [{"id": 1, "text": "x"}] * 2, wc.ConstraintError),
        (insert, {"id": 1, "text": "refused"}, wc.ConstraintError),
        (insert, {"id": 1, "text": "\ud800"}, wc.InvalidArgumentError),
        (insert, {"id": 2**70, "text": "x"}, wc.InvalidArgumentError),
    ],
)
def test_errors_of_our_statements_are_our_errors_with_the_drivers_as_their_cause(
    backend: Backend, way: str, statement: Any, values: Any, kind: type[wc.WaterclockError]
) -> None:
    with pytest.raises(kind) as raised:
        WAYS[way](backend, lambda own: own.execute(statement, values))
    assert isinstance(raised.value.__cause__, exc.StatementError)
    assert raised.value.__cause__.orig is not None
    assert backend.name in str(raised.value)
    WAYS[way](backend, lambda own: own.execute(insert, {"id": 7, "text": "still alive"}))


def test_an_error_at_the_commit_is_an_error_of_ours(database_url: str) -> None:
    deferred = "CREATE TABLE child (id int REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)"
    if database_url.startswith(("mysql", "mariadb")):
        deferred = "CREATE TABLE child (id int, FOREIGN KEY (id) REFERENCES parent(id))"  # it knows none that wait
    with closing(Backend(database_url)) as backend:
        with backend.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE parent (id int PRIMARY KEY)")
            connection.exec_driver_sql(deferred)
        for indexed in (False, True):
            with pytest.raises(wc.ConstraintError):
                backend.transact(lambda own: own.exec_driver_sql("INSERT INTO child VALUES (1)"), indexed=indexed)


def test_errors_in_a_snapshot_are_ours_and_errors_of_its_user_are_unchanged(backend: Backend) -> None:
    with pytest.raises(wc.RefusedError), backend.snapshot() as connection:
        connection.execute(sa.text("SELECT nothing FROM nowhere"))
    with pytest.raises(UnicodeEncodeError), backend.snapshot():
        "\ud800".encode()
    with pytest.raises(exc.NoResultFound), backend.snapshot() as connection:
        connection.execute(sa.select(numbers)).one()


def test_statements_of_the_callers_own_raise_what_they_always_did(database: Database) -> None:
    table = database.create_table("orders", payload="text")
    with database.backend.engine.connect() as connection:
        table.put("tea", connection=connection)
        with pytest.raises(exc.DBAPIError):
            connection.execute(sa.text("SELECT nothing FROM nowhere"))


def test_statements_of_ours_on_a_connection_of_the_callers_raise_errors_of_ours(
    database: Database,
) -> None:
    table = database.create_table("orders", payload="text", columns={"region": "text"})
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("CREATE UNIQUE INDEX only_one ON orders(priority)"))
    table.put("tea")
    theirs = sa.create_engine(database.backend.url)
    with pytest.raises(wc.ConstraintError) as raised, theirs.begin() as connection:
        table.put("coffee", connection=connection)
    assert isinstance(raised.value.__cause__, exc.IntegrityError)
    with closing(theirs.raw_connection()) as pooled, pytest.raises(wc.ConstraintError):
        table.put("coffee", connection=pooled.driver_connection)
    with theirs.connect() as connection:
        connection.close()
        with pytest.raises(wc.RefusedError, match="closed"):
            table.put("coffee", connection=connection)
    assert table.stats().ready == 1
    theirs.dispose()


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_statement_that_takes_longer_than_the_server_lets_it_is_reported_as_that_and_not_tried_again(
    backend: Backend,
) -> None:
    tries: list[int] = []
    limit, sleep = ("SET max_statement_time = 0.05", "SELECT SLEEP(10) FROM numbers")
    if backend.dialect.name == "postgresql":
        limit, sleep = "SET LOCAL statement_timeout = 50", "SELECT pg_sleep(10)"
    backend.transact(lambda own: own.execute(insert, {"id": 1, "text": "x"}))

    def work(own: sa.Connection) -> None:
        tries.append(1)
        own.exec_driver_sql(limit)
        own.exec_driver_sql(sleep).all()

    with pytest.raises(wc.TimedOutError, match="longer than the database allows"):
        backend.transact(work)
    assert len(tries) == 1


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_lock_that_is_not_had_in_time_is_reported_as_that_after_further_tries(backend: Backend) -> None:
    backend.transact(lambda own: own.execute(insert, {"id": 1, "text": "x"}))
    limit = "SET LOCAL lock_timeout = 10" if backend.dialect.name == "postgresql" else "SET innodb_lock_wait_timeout=0"
    update = sa.update(numbers).values(text="y")

    def work(own: sa.Connection) -> None:
        own.exec_driver_sql(limit)
        own.execute(update)

    with backend.engine.begin() as other, backend.patience(0.1):
        other.execute(update)
        with pytest.raises(wc.TimedOutError, match=r"did not answer for 0\.1 s"):
            backend.transact(work)


def test_a_pool_that_is_used_up_is_reported_as_that(sqlite_url: str) -> None:
    with closing(Backend(sqlite_url)) as backend:
        backend._own.pool._timeout = 0  # type: ignore[attr-defined]
        held = [backend._reader.connect() for _ in range(15)]
        with pytest.raises(wc.UnavailableError, match="all connections are in use"):
            backend.now_about() if backend.dialect.now() is not None else backend.transact(lambda _: None)
        with pytest.raises(wc.UnavailableError, match="all connections are in use"), backend.snapshot():
            pass
        for each in held:
            each.close()


@pytest.mark.parametrize("port", ["abc", "99999", "-1", "5432x", "٣"])
@pytest.mark.parametrize("url", ["postgresql://u:pw@127.0.0.1:{}/x", "mysql://u:pw@127.0.0.1:{}/x"])
@pytest.mark.parametrize("where", ["in its place", "in the query"])
def test_an_invalid_port_is_an_error(url: str, port: str, where: str) -> None:
    given = url.format(port) if where == "in its place" else f"{url.format(1)}?port={port}"
    with pytest.raises((wc.InvalidArgumentError, wc.UnavailableError)) as raised:
        wc.connect(given)
    assert "pw" not in str(raised.value)


def test_a_server_without_a_place_for_ledgers_asks_for_one_only_where_a_topic_needs_it(database_url: str) -> None:
    with wc.connect(database_url) as database:
        table = database.create_table("orders", payload="text")
        table.put("tea")
        assert [one.payload for one in table.receive()] == ["tea"]
        assert database.topics() == []
        if database.backend.dialect.name != "sqlite":
            with pytest.raises(wc.InvalidArgumentError, match="ledgers"):
                database.create_topic("telemetry")


def test_topics_say_in_errors_of_ours_what_the_database_does_not_keep(database: Database) -> None:
    topic = database.create_topic("telemetry")
    for name in ("\ud800", "a\0b"):
        calls: list[Callable[[], object]] = [
            lambda name=name: database.create_topic(name),
            lambda name=name: database.topic(name),
            lambda name=name: topic.subscribe(name),
            lambda name=name: topic.append([wc.Message("a", "b", 1)], producer=name, sequence=1),
            lambda name=name: topic.append([wc.Message(name, "b", 1)]),
        ]
        for call in calls:
            try:
                call()
            except wc.WaterclockError:
                continue


def test_work_that_meets_an_error_in_one_thread_leaves_the_others_alone(backend: Backend) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            backend.alone(lambda own: own.execute(insert, {"id": number, "text": "\ud800" if number % 2 else "x"}))
        except wc.InvalidArgumentError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 4
    with backend.snapshot() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(numbers)).scalar() == 4
