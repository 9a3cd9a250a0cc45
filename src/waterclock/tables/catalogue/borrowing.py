"""Wraps a caller's driver connection for SQLAlchemy, whatever the caller has configured on it.

Our statements use cursors of their own, so the caller's row factories, cursor classes and loaders stay in place. The
caller also controls the transaction: this module never begins or ends it.
"""

from __future__ import annotations

import copy
import sqlite3
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError

_VERBS = ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate")
_ALIKE = {"pymysql", "MySQLdb"}  # one is a drop-in replacement for the other, with the same statements
_DRIVERS = {"sqlite3", "psycopg", *_ALIKE}
_OTHERS = {"psycopg2", "asyncpg", "pg8000", "mysql", "mariadb", "aiomysql", "asyncmy", "aiosqlite", "apsw", "oracledb"}


class Borrowing:
    """Wraps drivers' connections for SQLAlchemy. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lent = threading.local()
        self._engines: dict[str, sa.Engine] = {}

    @contextmanager
    def use(self, connection: Any) -> Generator[sa.Connection]:
        """Wrap a driver's connection for the block.

        Raises `InvalidArgumentError` if its driver is not the one with which the database was opened.
        """
        driver = self._driver_of(connection)
        engine = self._engines.get(driver)
        if engine is None:
            engine = self._engines[driver] = self._engine(driver)
        with self._lending(connection), _reading_texts(connection), engine.connect() as borrowed:
            yield borrowed

    @contextmanager
    def _lending(self, connection: Any) -> Generator[None]:
        before = getattr(self._lent, "connection", None)
        self._lent.connection = connection
        try:
            yield
        finally:
            self._lent.connection = before  # a pool would lend the kept connection to another thread

    def _driver_of(self, connection: Any) -> str:
        own = self._backend.engine.dialect.loaded_dbapi.__name__.partition(".")[0]
        modules = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
        usable = {own, *_ALIKE} if own in _ALIKE else {own}
        for module in sorted(modules & usable):
            return module
        if others := sorted(modules & (_DRIVERS | _OTHERS)):
            raise InvalidArgumentError(
                f"connection must be a SQLAlchemy Connection, or a connection of {own}, the driver of"
                f" {self._backend.name}, got a connection of {others[0]}: {quoted(connection)}"
            )
        return own  # a proxy, such as the connections of some pools

    def _engine(self, driver: str) -> sa.Engine:
        # A copy of the initialized dialect: it runs no queries on a connection that is not ours.
        dialect: Any = copy.copy(self._backend.engine.dialect)
        dialect.dbapi = sys.modules.get(driver, dialect.dbapi)  # for its errors
        for verb in _VERBS:
            setattr(dialect, verb, lambda _connection: None)
        cursor = _CURSORS.get(driver)
        if cursor is not None:
            dialect.execution_ctx_cls = _with_cursors(dialect.execution_ctx_cls, cursor)
        pool = sa.NullPool(lambda: self._lent.connection, dialect=dialect, reset_on_return=None)
        return sa.Engine(pool, dialect, self._backend.url)


def _with_cursors(context: Any, cursor: Callable[[Any], Any]) -> Any:
    def create_cursor(self: Any) -> Any:
        return cursor(self.root_connection.connection.dbapi_connection)

    return type(context.__name__, (context,), {"create_cursor": create_cursor})


@contextmanager
def _reading_texts(connection: Any) -> Generator[None]:
    # SQLite's driver cannot set this for one cursor.
    factory = getattr(connection, "text_factory", str)
    if factory is str:
        yield
        return
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = factory


def _sqlite_cursor(connection: Any) -> Any:
    cursor = sqlite3.Cursor(connection) if isinstance(connection, sqlite3.Connection) else connection.cursor()
    cursor.row_factory = None
    return cursor


def _pymysql_cursor(connection: Any) -> Any:
    module = "MySQLdb" if type(connection).__module__.startswith("MySQLdb") else "pymysql"
    return connection.cursor(sys.modules[f"{module}.cursors"].Cursor)


def _psycopg_cursor(connection: Any) -> Any:
    return _plain_psycopg_cursor()(connection, row_factory=sys.modules["psycopg.rows"].tuple_row)


@cache
def _plain_psycopg_cursor() -> Any:
    import psycopg  # noqa: PLC0415  # comes with an extra

    def adapters(_self: object) -> object:
        return psycopg.adapters

    # Placeholders like %s, rows that are tuples, and values in the types that psycopg itself reads.
    return type("PlainCursor", (cast("Any", psycopg).Cursor,), {"adapters": property(adapters)})


_CURSORS: dict[str, Callable[[Any], Any]] = {
    "sqlite3": _sqlite_cursor,
    "psycopg": _psycopg_cursor,
    "pymysql": _pymysql_cursor,
    "MySQLdb": _pymysql_cursor,
}
