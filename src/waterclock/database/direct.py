"""Statements straight to the driver, for what runs thousands of times a second.

SQLAlchemy's pool and execution cost four times what the driver does for a statement of one row. Here a statement is
compiled once and its text kept; the connections commit each statement by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

_KEPT = 8  # connections


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    constants: dict[str, Any]
    computed: tuple[tuple[str, Callable[[], Any]], ...]
    processors: dict[str, Callable[[Any], Any]]


@lru_cache(maxsize=1024)
def _compile(statement: sa.ClauseElement, dialect: sa.Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    processors: dict[str, Callable[[Any], Any]] = {}
    constants: dict[str, Any] = {}
    computed: list[tuple[str, Callable[[], Any]]] = []
    for name, bind in compiled.binds.items():
        process = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if process is not None:
            processors[name] = process
        if bind.callable is not None:
            computed.append((name, bind.callable))
        elif not bind.required:
            constants[name] = bind.value if process is None else process(bind.value)
    # What was expanded has names and values of its own.
    expanded = compiled.construct_params(_check=False)
    constants |= {name: value for name, value in expanded.items() if name not in compiled.binds}
    return _Compiled(str(compiled), constants, tuple(computed), processors)


class Direct:
    """A driver's connection that takes SQLAlchemy's statements; as much of `sqlalchemy.Connection` as is needed."""

    def __init__(self, connection: Any, dialect: sa.Dialect) -> None:
        self._connection = connection
        self.dialect = dialect

    def execute(self, statement: sa.ClauseElement, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run a statement; keep the statement object, since it is compiled once for each.

        Returns
        -------
        cursor
            The driver's, with ``rowcount`` and tuples.
        """
        compiled = _compile(statement, self.dialect)
        values = dict(compiled.constants)
        for name, compute in compiled.computed:
            values[name] = compute()
        for name, value in (parameters or {}).items():
            process = compiled.processors.get(name)
            values[name] = value if process is None else process(value)
        return self.exec_driver_sql(compiled.text, values)

    def scalars(self, statement: sa.ClauseElement, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a statement, and return the first column."""
        return [row[0] for row in self.execute(statement, parameters)]

    def exec_driver_sql(self, text: str, parameters: Any = None) -> Any:
        """Run a statement of the driver's.

        Raises
        ------
        sqlalchemy.exc.DBAPIError
            As SQLAlchemy would raise it.
        """
        driver_error = self.dialect.loaded_dbapi.Error
        try:
            return self._connection.execute(text, parameters)
        except driver_error as error:
            broken = self.dialect.is_disconnect(error, self._connection, None)
            raise _wrapped(error, driver_error, self.dialect, broken=broken) from error


class DirectPool:
    """Connections that are kept for `Direct`. Safe to share between threads.

    They are not looked at before they are lent: what goes over them may be tried again, and is.
    """

    def __init__(self, engine: sa.Engine, set_up: Callable[[Any], None]) -> None:
        self._engine = engine
        self._set_up = set_up
        self._idle: deque[Any] = deque()

    @contextmanager
    def lend(self) -> Generator[Direct]:
        """Lend a connection. One that met an error is not lent again, and the others of its age neither.

        Raises
        ------
        sqlalchemy.exc.DBAPIError
            As SQLAlchemy would raise it.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        try:
            yield Direct(connection, self._engine.dialect)
        except exc.DBAPIError as error:
            _close(connection)
            if error.connection_invalidated:
                self.close()
            raise
        except BaseException:
            _close(connection)  # a statement may be under way on it
            raise
        if len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            _close(connection)

    def close(self) -> None:
        """Give the connections back that nobody has."""
        with suppress(IndexError):
            while True:
                _close(self._idle.pop())

    def _open(self) -> Any:
        driver_error = self._engine.dialect.loaded_dbapi.Error
        try:
            pooled = self._engine.raw_connection()
        except driver_error as error:
            raise _wrapped(error, driver_error, self._engine.dialect, broken=False) from error
        connection = pooled.driver_connection
        pooled.detach()
        connection.autocommit = True  # pyright: ignore[reportOptionalMemberAccess]  # it was just opened
        self._set_up(connection)
        return connection


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


def _wrapped(error: Exception, driver_error: type[Exception], dialect: sa.Dialect, *, broken: bool) -> BaseException:
    return exc.DBAPIError.instance(None, None, error, driver_error, connection_invalidated=broken, dialect=dialect)
