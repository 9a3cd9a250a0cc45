"""Runs our statements in a caller's transaction, through SQLAlchemy, Django, or a bare DB-API connection."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.engines.explicit_updates import compile_explicitly
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.borrowing import Borrowing


class CallerConnections:
    """Turns ``connection=`` arguments into SQLAlchemy connections, without ending the caller's transaction."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._borrowing = Borrowing(backend)

    @contextmanager
    def use(self, connection: Any) -> Generator[sa.Connection]:
        """Yield the caller's connection as a SQLAlchemy connection.

        Changes count when the caller commits. On an autocommit connection, the block is a transaction of its own.
        Raises `InvalidArgumentError` for other objects, for a connection to another kind of database, and in psycopg's
        pipeline mode. Raises `WaterclockError` if one of our statements fails; the driver's error is its cause. The
        database decides how that affects the caller's transaction.

        ``connection`` is a SQLAlchemy Connection or Session, Django's ``connection``, or a DB-API connection of the
        driver that the database's URL names. For an asynchronous SQLAlchemy connection, it is the one that ``run_sync``
        passes.
        """
        with self._backend.translated("use the caller's connection to"), self._lend(connection) as lent:
            yield lent

    @contextmanager
    def _lend(self, connection: Any) -> Generator[sa.Connection]:
        if isinstance(connection, sa.Connection):
            theirs = self._checked(connection)
        elif any(iscoroutinefunction(getattr(connection, verb, None)) for verb in ("commit", "execute")):
            raise InvalidArgumentError(
                f"connection must be synchronous, got {_kind(connection)}. With SQLAlchemy's AsyncConnection"
                " or AsyncSession, use run_sync: await session.run_sync(lambda own: table.put(…, connection=own))"
            )
        elif not _has(connection, "cursor") and _has(connection, "connection", "commit"):
            theirs = self._checked(connection.connection())  # a Session, or a proxy for one
        elif _has(connection, "cursor", "commit"):
            with self._borrowing.use(_driver_connection(connection)) as borrowed, _in_one_transaction(borrowed):
                yield borrowed
            return
        else:
            raise InvalidArgumentError(
                "connection must be a SQLAlchemy Connection or Session, Django's connection, or a DB-API connection,"
                f" got {_kind(connection)}"
            )
        with _in_one_transaction(theirs):
            yield theirs

    def _checked(self, connection: Any) -> sa.Connection:
        kinds = {"mariadb": "mysql"}  # two names of the same database
        ours = self._backend.dialect.name
        if not isinstance(connection, sa.Connection) or kinds.get(name := connection.dialect.name, name) != ours:
            raise InvalidArgumentError(f"connection must be to {self._backend.name}, got {_kind(connection)}")
        compile_explicitly(connection.dialect)
        return connection


def _kind(connection: Any) -> str:
    """Return the type of a connection for an error; its text may be a URL with a password."""
    kind = connection if isinstance(connection, type) else type(connection)
    dialect = f" to {connection.dialect.name}" if isinstance(connection, sa.Connection) else ""
    return f"{'the class' if kind is connection else 'one of type'} {kind.__module__}.{kind.__qualname__}{dialect}"


def _has(connection: Any, *verbs: str) -> bool:
    return not isinstance(connection, type) and all(callable(getattr(connection, verb, None)) for verb in verbs)


def _driver_connection(connection: Any) -> Any:
    """Return the driver's connection inside Django's, or inside one that SQLAlchemy's pool lent."""
    if callable(getattr(connection, "ensure_connection", None)):
        connection.cursor().close()  # this connects, and fails in another thread
        connection.validate_no_broken_transaction()
        return connection.connection
    return getattr(connection, "driver_connection", None) or connection


@contextmanager
def _in_one_transaction(connection: sa.Connection) -> Generator[None]:
    """Begin a transaction if the caller's connection has none: otherwise every statement would commit separately."""
    _refuse_pipeline(connection)
    if not connection.in_transaction():
        connection.begin()  # as its first statement would, including event listeners
    begin = _missing_begin(connection)
    if begin is None:
        yield
        return
    connection.exec_driver_sql(begin)
    if not _commits_each(connection):
        yield  # SQLite's driver would begin at the first change, after earlier reads
        return
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _refuse_pipeline(connection: sa.Connection) -> None:
    """Raise in psycopg's pipeline mode: no statement returns a result before the caller leaves it."""
    about: Any = getattr(connection.connection.driver_connection, "info", None)
    if getattr(about, "pipeline_status", 0):  # libpq's PQ_PIPELINE_OFF
        raise InvalidArgumentError(
            "connection must not be in pipeline mode, where a statement has no result until the pipeline ends. Make"
            " this call before or after the with block of pipeline()"
        )


def _missing_begin(connection: sa.Connection) -> str | None:
    driver: Any = connection.connection.driver_connection
    match connection.dialect.name:
        case "sqlite":
            return None if driver.in_transaction else "BEGIN IMMEDIATE"
        case "postgresql":
            if not _commits_each(connection):
                return None
            is_open = driver.is_in_transaction() if hasattr(driver, "is_in_transaction") else _is_open(driver)
            return None if is_open else "BEGIN"
        case _:
            is_open = not _commits_each(connection) or connection.exec_driver_sql("SELECT @@in_transaction").scalar()
            return None if is_open else "BEGIN"


def _is_open(driver: Any) -> bool:
    return driver.info.transaction_status != 0  # libpq's PQTRANS_IDLE


def _commits_each(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    match connection.dialect.name:
        case "sqlite":
            return driver.isolation_level is None or getattr(driver, "autocommit", False) is True
        case "postgresql":
            return driver.autocommit
        case _:
            return driver.get_autocommit()
