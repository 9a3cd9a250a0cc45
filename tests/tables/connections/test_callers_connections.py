"""Connections as callers have them: with factories, cursors and drivers of their own, and with no transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from psycopg.rows import class_row, dict_row, namedtuple_row
from pymysql.cursors import DictCursor, SSCursor, SSDictCursor
from sqlalchemy.dialects.postgresql import HSTORE
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from tests.tables.options.plain_sql import run
from tests.tables.received import payloads

import waterclock as wc
from waterclock.connection import Database
from waterclock.errors import ConstraintError
from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_mariadb = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)


def where(database: Database) -> dict[str, Any]:
    url = database.backend.url
    return {"host": url.host, "port": url.port, "user": url.username, "password": url.password}


def postgresql(database: Database, **options: Any) -> Any:
    return psycopg.connect(dbname=database.backend.url.database, **where(database), **options)


def mariadb(database: Database, **options: Any) -> Any:
    return pymysql.connect(database=database.backend.url.database, **where(database), **options)


def sqlite(database: Database, **options: Any) -> Any:
    return sqlite3.connect(str(database.backend.url.database), **options)


def by_name(cursor: sqlite3.Cursor, row: Any) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def with_factory(factory: Any) -> Callable[[Database], Any]:
    def open_it(database: Database) -> Any:
        connection = sqlite(database)
        connection.row_factory = factory
        connection.text_factory = bytes
        return connection

    return open_it


class Strange(sqlite3.Connection):
    """One whose cursors take statements of another form."""

    def cursor(self, *_arguments: Any) -> Any:
        raise AssertionError("the caller's cursor is the caller's")


def strange_loaders(database: Database) -> Any:
    connection = postgresql(database, row_factory=class_row(dict))
    for kind in ("int8", "text", "varchar"):
        connection.adapters.register_loader(kind, psycopg.types.string.ByteaLoader)
    return connection


OPEN: dict[str, list[Callable[[Database], Any]]] = {
    "sqlite": [
        with_factory(by_name),
        with_factory(sqlite3.Row),
        lambda database: sqlite(database, factory=Strange),
        lambda database: sqlite(database, isolation_level="EXCLUSIVE"),
    ],
    "postgresql": [
        lambda database: postgresql(database, row_factory=dict_row),
        lambda database: postgresql(database, row_factory=namedtuple_row),
        lambda database: postgresql(database, cursor_factory=psycopg.ClientCursor),
        lambda database: postgresql(database, cursor_factory=psycopg.RawCursor),
        strange_loaders,
    ],
    "mariadb": [
        lambda database: mariadb(database, cursorclass=DictCursor),
        lambda database: mariadb(database, cursorclass=SSCursor),
        lambda database: mariadb(database, cursorclass=SSDictCursor),
        lambda database: mariadb(database, charset="latin1"),
    ],
}
ways = pytest.mark.parametrize(
    ("database_url", "open_it"),
    [(kind, open_it) for kind, each in OPEN.items() for open_it in each],
    indirect=["database_url"],
)


def put_and_ack(table: MessageTable, connection: Any, commit: Callable[[], object], back: Callable[[], object]) -> None:
    """Do all that takes a connection, and see that it is the caller's transaction in which it is done."""
    table.put("lost", id="lost", group="a", connection=connection)
    back()
    put = [{"payload": one, "id": one, "group": "a"} for one in ("1", "2", "3")]
    assert table.put_many([*put, *put], connection=connection).existing == ["1", "2", "3"]
    assert table.put("again", id="1", connection=connection) == "1"
    commit()
    first, second, third = table.receive()
    assert [one.payload for one in (first, second, third)] == ["1", "2", "3"]
    table.ack([first], connection=connection)
    back()
    assert table.stats().acked == 0
    with pytest.raises(wc.OrderError, match="'1'"):
        table.ack("2", connection=connection)
    back()
    assert table.ack([first.id, second.id], connection=connection) == 2
    commit()
    assert table.ack("3", connection=connection) == 1
    commit()
    assert table.stats().acked == 3


@pytest.fixture
def table(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table(groups="sequenced", id_type="text", batch_size=3)


@ways
def test_a_connection_with_a_factory_of_its_own_puts_and_acks_and_keeps_it(
    table: MessageTable, database: Database, open_it: Callable[[Database], Any]
) -> None:
    with closing(open_it(database)) as connection:
        before = {name: getattr(connection, name, None) for name in ("row_factory", "text_factory", "cursorclass")}
        put_and_ack_in_order(table, connection)
        assert before == {name: getattr(connection, name, None) for name in before}


def put_and_ack_in_order(table: MessageTable, connection: Any) -> None:
    put_and_ack(table, connection, connection.commit, connection.rollback)


AUTOCOMMIT: dict[str, Callable[[Database], Any]] = {
    "sqlite": lambda database: sqlite(database, isolation_level=None),
    "postgresql": lambda database: postgresql(database, autocommit=True),
    "mariadb": lambda database: mariadb(database, autocommit=True),
}


def of_sqlalchemy(database: Database) -> Any:
    return sa.create_engine(database.backend.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect()


@pytest.mark.parametrize(
    ("database_url", "open_it"),
    [*AUTOCOMMIT.items(), *((kind, of_sqlalchemy) for kind in AUTOCOMMIT)],
    indirect=["database_url"],
)
def test_on_a_connection_that_commits_each_statement_a_call_is_done_whole_or_not_at_all(
    make_table: Callable[..., MessageTable], database: Database, open_it: Callable[[Database], Any]
) -> None:
    table = make_table(id_type="text", groups="sequenced", columns={"number": "bigint"}, batch_size=5)
    run(database, "CREATE UNIQUE INDEX once ON orders(number)")
    with closing(open_it(database)) as connection:
        rows = [{"payload": str(number), "id": str(number), "number": number % 1200} for number in range(1201)]
        with pytest.raises(ConstraintError):
            table.put_many(rows, connection=connection)
        assert table.stats().ready == 0
        table.put_many([{"payload": str(number), "id": str(number)} for number in range(3)], connection=connection)
        assert table.stats().ready == 3
        with pytest.raises(wc.OrderError):
            table.ack(["1", "2"], connection=connection)
        assert table.ack(["0", "1"], connection=connection) == 2
        assert table.stats().acked == 2
        # One that began a transaction by hand has one.
        execute = connection.exec_driver_sql if hasattr(connection, "exec_driver_sql") else connection.cursor().execute
        execute("BEGIN")
        assert table.ack("2", connection=connection) == 1
        execute("ROLLBACK")
        assert table.stats().acked == 2


@on_sqlite
def test_reads_before_the_first_change_are_in_the_callers_transaction(table: MessageTable, database: Database) -> None:
    table.put("a", id="a")
    with closing(sqlite(database)) as connection:
        assert table.ack("a", connection=connection) == 1
        assert connection.in_transaction
        connection.commit()


ASYNC = {
    "sqlite": ["sqlite+aiosqlite"],
    "postgresql": ["postgresql+asyncpg", "postgresql+psycopg"],
}


@pytest.mark.parametrize(
    ("database_url", "driver"),
    [(kind, driver) for kind, drivers in ASYNC.items() for driver in drivers],
    indirect=["database_url"],
)
def test_asynchronous_connections_and_sessions_of_sqlalchemy_work_through_run_sync(
    table: MessageTable, database: Database, driver: str
) -> None:
    async def on_connection(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.run_sync(lambda own: put_and_ack_in_order(table, own))

    async def on_session(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            ids = await session.run_sync(lambda own: table.put_many([{"payload": "s", "id": "s"}], connection=own))
            assert ids == ["s"]
            with pytest.raises(wc.InvalidArgumentError, match=r"synchronous, got .*With SQLAlchemy's AsyncConnection"):
                table.put("x", id="x", connection=session)

    async def on_autocommit(engine: AsyncEngine) -> None:
        async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            await connection.run_sync(lambda own: table.put("c", id="c", connection=own))
            with pytest.raises(wc.InvalidArgumentError, match=r"synchronous, got .*With SQLAlchemy's AsyncConnection"):
                table.put("x", id="x", connection=connection)

    async def all_of_them() -> None:
        engine = create_async_engine(database.backend.url.set(drivername=driver))
        works: list[Callable[[AsyncEngine], Awaitable[None]]] = [on_connection, on_session, on_autocommit]
        for work in works:
            await work(engine)
        await engine.dispose()

    asyncio.run(all_of_them())
    assert sorted(payloads(table)) == ["c", "s"]


@on_postgresql
def test_asyncpg_takes_every_type_of_id_and_payload(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    columns = {"one": "json", "two": "text", "three": "bytes", "four": "boolean", "five": "double"}
    further = {"one": {"b": 1}, "two": "t", "three": b"\x01", "four": True, "five": 0.5}
    forms: dict[str, list[Any]] = {
        "bytes": [b"\x00\xff", b""],
        "text": ["ä€😀\\ ' %s %(a)s", ""],
        "json": [{"a": [1, None, "ä"]}, None],
    }
    tables = {
        (kind, form): make_table(f"{kind}_{form}", id_type=kind, payload=form, columns=columns)
        for kind, form in (("bigint", "bytes"), ("text", "text"), ("uuid", "json"))
    }

    async def put() -> None:
        engine = create_async_engine(database.backend.url.set(drivername="postgresql+asyncpg"))
        async with engine.begin() as connection:
            for (kind, form), table in tables.items():
                rows = [
                    {"payload": one, "headers": {"a": "b"}, "priority": 3, "id": str(index) if kind == "text" else None}
                    for index, one in enumerate(forms[form])
                ]
                await connection.run_sync(
                    lambda own, table=table, rows=rows: table.put_many(
                        [{**row, **further} for row in rows], connection=own
                    )
                )
        await engine.dispose()

    asyncio.run(put())
    for (_, form), table in tables.items():
        found = [(one.payload, one.columns, one.headers) for one in table.receive()]
        assert found == [(payload, further, {"a": "b"}) for payload in forms[form]]


@pytest.fixture
def foreign() -> Generator[Callable[[str], Any]]:
    """Make a connection of a driver by its name."""

    def make(driver: str) -> Any:
        body = {name: lambda *_: None for name in ("cursor", "commit", "rollback")}
        return type("connection", (), {**body, "__module__": f"{driver}.extensions"})()

    return make


def test_a_connection_of_another_driver_or_database_is_refused_by_name(
    table: MessageTable, database: Database, foreign: Callable[[str], Any]
) -> None:
    own = {"sqlite": "sqlite3", "postgresql": "psycopg", "mysql": "pymysql"}[database.backend.dialect.name]
    for driver in ("psycopg2", "apsw", *({"sqlite3", "psycopg", "pymysql"} - {own})):
        with pytest.raises(
            wc.InvalidArgumentError, match=rf"must be a SQLAlchemy Connection, or a connection of {own}, .* of {driver}"
        ):
            table.put("x", id="x", connection=foreign(driver))
    other = "sqlite://" if own != "sqlite3" else "postgresql+psycopg://u@localhost:1/none"
    if own != "sqlite3":
        with (
            sa.create_engine(other).connect() as connection,
            pytest.raises(wc.InvalidArgumentError, match="connection must be to"),
        ):
            table.put("x", id="x", connection=connection)


@on_postgresql
def test_a_connection_in_pipeline_mode_is_refused_by_every_verb(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    verbs: list[Callable[[Any], object]] = [
        lambda theirs: orders.put("cake", connection=theirs),
        lambda theirs: orders.put_many([{"payload": "cake"}], connection=theirs),
        lambda theirs: orders.ack(1, connection=theirs),
        lambda theirs: delivery.ack(connection=theirs),
    ]
    with closing(postgresql(database)) as connection:
        with connection.pipeline():
            for verb in verbs:
                with pytest.raises(wc.InvalidArgumentError, match=r"^connection must not be in pipeline mode"):
                    verb(connection)
        delivery.ack(connection=connection)
        connection.commit()
    assert (orders.stats().acked, orders.stats().ready) == (1, 0)


@on_postgresql
def test_a_driver_s_asynchronous_connection_is_refused_with_the_way(table: MessageTable, database: Database) -> None:
    async def refuse() -> None:
        connection = await psycopg.AsyncConnection.connect(dbname=database.backend.url.database, **where(database))
        with pytest.raises(wc.InvalidArgumentError, match="run_sync"):
            table.put("x", id="x", connection=connection)
        await connection.close()

    asyncio.run(refuse())


@on_postgresql
def test_an_hstore_is_put_on_a_connection_whose_driver_does_not_know_the_type(
    database_url: str, connect: Callable[..., Database]
) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:  # not every server has the extension
        connection.execute(sa.text("CREATE DOMAIN hstore AS text"))
    engine.dispose()
    database = connect()
    table = database.create_table("orders", payload="text", columns={"tags": HSTORE()})
    with closing(postgresql(database)) as connection:
        table.put("x", tags={"colour": "red"}, connection=connection)
        connection.commit()
    with database.backend.engine.connect() as reading:
        stored = sa.select(sa.table("orders", sa.column("tags", sa.Text)).c.tags)
        assert reading.execute(stored).scalar() == '"colour"=>"red"'


@on_mariadb
def test_mariadb_s_two_names_are_one(table: MessageTable, database: Database) -> None:
    engine = sa.create_engine(database.backend.url.set(drivername="mariadb+pymysql"))
    with engine.begin() as connection:
        assert connection.dialect.name == "mariadb"
        table.put("x", id="x", connection=connection)
    engine.dispose()
    assert payloads(table) == ["x"]


def test_a_connection_that_sqlalchemy_s_pool_lent_is_the_driver_s(table: MessageTable, database: Database) -> None:
    engine = sa.create_engine(database.backend.url)
    lent = engine.raw_connection()
    table.put("x", id="x", connection=lent)
    lent.commit()
    lent.close()
    engine.dispose()
    assert payloads(table) == ["x"]


@on_mariadb
def test_mysqlclient_s_connections_are_taken_by_its_name(
    table: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand PyMySQL in for it: it needs a compiler, and Django asks for it by that name."""
    for name in ("", ".cursors", ".connections"):
        monkeypatch.setitem(sys.modules, f"MySQLdb{name}", sys.modules[f"pymysql{name}"])
    cls = types.new_class(
        "Connection",
        (pymysql.connections.Connection,),
        exec_body=lambda body: body.update({"__module__": "MySQLdb.connections"}),
    )
    with closing(cls(database=database.backend.url.database, cursorclass=DictCursor, **where(database))) as connection:
        put_and_ack_in_order(table, connection)


@on_sqlite
def test_an_invalid_connection_shows_no_password(table: MessageTable) -> None:
    url = "postgresql://clerk:s3cr3t@host/factory"
    for given in (url, url.encode(), {"password": "s3cr3t"}, ["s3cr3t"]):
        with pytest.raises(
            wc.InvalidArgumentError, match=r"connection must be a SQLAlchemy Connection or Session, "
        ) as of_put:
            table.put("tea", id="one", connection=given)
        with pytest.raises(
            wc.InvalidArgumentError, match=r"connection must be a SQLAlchemy Connection or Session, "
        ) as of_ack:
            table.ack(["one"], connection=given)
        for caught in (of_put, of_ack):
            assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


@on_postgresql
@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("is_put_before", [True, False])
def test_a_transaction_older_than_the_claim_keeps_the_lease(
    make_table: Callable[..., MessageTable], database: Database, groups: str | None, level: str, is_put_before: bool
) -> None:
    table = make_table(groups=groups)
    for together in (False, True):
        with closing(postgresql(database)) as connection:
            connection.isolation_level = getattr(psycopg.IsolationLevel, level)
            if is_put_before:
                table.put("tea")
            connection.execute("SELECT count(*) FROM orders")
            if not is_put_before:
                table.put("tea")
            [delivery] = table.receive()
            with pytest.raises(wc.UnavailableError, match=r"could not serialize|transaction began before"):
                table.ack([delivery], connection=connection) if together else delivery.ack(connection=connection)
            assert not delivery.lost
            connection.rollback()
            delivery.ack(connection=connection)
            connection.commit()
            assert table.receive() == []


@on_postgresql
def test_a_lease_that_was_lost_before_the_transaction_began_is_lost_to_it(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("tea")
    [delivery] = table.receive()
    table.reschedule(delivery.id, 0)
    with closing(postgresql(database)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(wc.LeaseLostError):
            delivery.ack(connection=connection)


def test_callers_that_hold_all_connections_of_the_engine_do_not_block_calls(
    database: Database, orders: MessageTable
) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(database.backend.engine.connect()) for _ in range(15)]
        orders._row._looked_at -= LOOK_EVERY
        orders.put("a", unique="k", connection=held[0])
        held[0].commit()
        assert payloads(orders) == ["a"]
