"""Working inside a transaction of the caller's: through SQLAlchemy, Django, or a bare DB-API connection."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.borrowing import Borrowing


class CallerConnections:
    """Makes what callers pass as ``connection=`` a SQLAlchemy connection, without ending their transaction."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._borrowing = Borrowing(backend)

    @contextmanager
    def use(self, connection: Any) -> Generator[sa.Connection]:
        """Lend the caller's connection to us.

        What is done with it counts when the caller commits. A connection that commits each statement by itself has no
        transaction: then what we do is one, which is committed in the end.

        Parameters
        ----------
        connection
            A SQLAlchemy Connection or Session, Django's ``connection``, or a DB-API connection of the driver that the
            database's URL names. Of SQLAlchemy's asynchronous ones, what ``run_sync`` passes.

        Raises
        ------
        InvalidArgumentError
            For anything else, for a connection to another kind of database, and in psycopg's pipeline mode.
        WaterclockError
            Where a statement of ours fails there; the driver's error is its cause. What that does to the caller's
            transaction is as the database has it.
        """
        with self._backend.translated("use the caller's connection to"), self._lend(connection) as lent:
            yield lent

    @contextmanager
    def _lend(self, connection: Any) -> Generator[sa.Connection]:
        if isinstance(connection, sa.Connection):
            theirs = self._checked(connection)
        elif any(iscoroutinefunction(getattr(connection, verb, None)) for verb in ("commit", "execute")):
            raise InvalidArgumentError(
                f"connection: {_kind(connection)} is asynchronous; give what run_sync of SQLAlchemy's AsyncConnection"
                " or AsyncSession passes: await session.run_sync(lambda own: table.put(…, connection=own))"
            )
        elif not _has(connection, "cursor") and _has(connection, "connection", "commit"):
            theirs = self._checked(connection.connection())  # a Session, or what stands for one
        elif _has(connection, "cursor", "commit"):
            with self._borrowing.use(_driver_connection(connection)) as borrowed, _in_one_transaction(borrowed):
                yield borrowed
            return
        else:
            raise InvalidArgumentError(
                f"connection: {_kind(connection)} is no connection; give a SQLAlchemy Connection or Session, Django's"
                " connection, or a DB-API connection"
            )
        with _in_one_transaction(theirs):
            yield theirs

    def _checked(self, connection: Any) -> sa.Connection:
        kinds = {"mariadb": "mysql"}  # two names for one
        ours = self._backend.dialect.name
        if not isinstance(connection, sa.Connection) or kinds.get(name := connection.dialect.name, name) != ours:
            raise InvalidArgumentError(f"connection: {_kind(connection)} is not a connection to {self._backend.name}")
        return connection


def _kind(connection: Any) -> str:
    """Name what was given by its type alone: its text may be a URL with a password."""
    kind = connection if isinstance(connection, type) else type(connection)
    dialect = f" to {connection.dialect.name}" if isinstance(connection, sa.Connection) else ""
    return f"{'the class' if kind is connection else 'one of type'} {kind.__module__}.{kind.__qualname__}{dialect}"


def _has(connection: Any, *verbs: str) -> bool:
    return not isinstance(connection, type) and all(callable(getattr(connection, verb, None)) for verb in verbs)


def _driver_connection(connection: Any) -> Any:
    """Take the driver's connection out of Django's, or out of one that SQLAlchemy's pool lent."""
    if callable(getattr(connection, "ensure_connection", None)):
        connection.cursor().close()  # connects, and refuses another thread's
        connection.validate_no_broken_transaction()
        return connection.connection
    return getattr(connection, "driver_connection", None) or connection


@contextmanager
def _in_one_transaction(connection: sa.Connection) -> Generator[None]:
    """Make a transaction where the caller's connection has none: else every statement would commit by itself."""
    _refuse_pipeline(connection)
    if not connection.in_transaction():
        connection.begin()  # as its first statement would, with what listens to that
    begin = _missing_begin(connection)
    if begin is None:
        yield
        return
    connection.exec_driver_sql(begin)
    if not _commits_each(connection):
        yield  # SQLite's driver would have begun it at the first change, and leaves what was read before it out
        return
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _refuse_pipeline(connection: sa.Connection) -> None:
    """Refuse psycopg's pipeline mode: no statement of ours would have an answer before the caller leaves it."""
    about: Any = getattr(connection.connection.driver_connection, "info", None)
    if getattr(about, "pipeline_status", 0):  # libpq's PQ_PIPELINE_OFF
        raise InvalidArgumentError(
            "connection: it is in pipeline mode, in which no statement is answered before the pipeline ends; call this"
            " before or after the with block of pipeline()"
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
