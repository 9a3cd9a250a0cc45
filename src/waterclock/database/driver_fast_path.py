"""Passes frequent statements directly to the driver.

For a statement of one row, SQLAlchemy's pool and execution cost four times as much as the driver. This module compiles
each statement once, and caches its text and the converters of its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.deadlines import ANSWERS_WITHIN, lent, mine, returned
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.database.statement_compiling import CompiledStatement, compile_once
from waterclock.database.wrapping import MISFITS, wrapped

_WELL = 2  # libpq's PGRES_TUPLES_OK: after it come the results of failed statements


class Frame(NamedTuple):
    """The statements around a transaction."""

    begin: tuple[str, ...]
    commit: str
    rollback: str
    # Statements before and after a transaction whose commit need not wait for the disk; empty if each waits.
    hurry: str
    wait: str
    run: Callable[[Any, str], Any]  # runs one of them on a driver's connection
    # Opens a driver's pipeline, in which answers are awaited only at a sync or at its end. None without a network.
    together: Callable[[Any], AbstractContextManager[Any]] | None = None


def _row_reader(columns: Sequence[sa.ColumnElement[Any]], description: Any, dialect: sa.Dialect) -> Any:
    """Return a function that converts the driver's row to one with columns as attributes.

    Our own types may name in ``as_it_is`` a type of values that their processor returns unchanged.
    """
    names = [getattr(column, "name", None) for column in columns]
    body = {name: property(itemgetter(place)) for place, name in enumerate(names) if isinstance(name, str)}
    row: Any = type("Row", (tuple,), {"__slots__": (), **body})
    mends = [
        (place, process, getattr(column.type, "as_it_is", None))
        for place, (column, described) in enumerate(zip(columns, description, strict=True))
        if (process := column.type.dialect_impl(dialect).result_processor(dialect, described[1])) is not None
    ]
    if not mends:
        return row

    def mended(values: Sequence[Any]) -> Any:
        found = list(values)
        for place, process, as_it_is in mends:
            if type(found[place]) is not as_it_is:
                found[place] = process(found[place])
        return row(found)

    return mended


class FetchedRows(list[Any]):
    """All rows of a statement, because an open cursor keeps locks."""

    rowcount = -1  # number of rows changed

    all = list[Any].copy

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self[0][0] if self else None

    scalar_one = scalar  # for statements that always have a row

    def first(self) -> Any:
        """Return the first row, or None."""
        return self[0] if self else None

    def one(self) -> Any:
        """Return the only row of a statement that always has one."""
        [row] = self
        return row


Asked = tuple[sa.Executable, Mapping[str, Any] | Sequence[Mapping[str, Any]]]
"""A statement and its parameters, or a list of parameters to run it several times."""

_Sent = tuple[str, Any]  # a text and its values in the driver's form, or a list of them to run it several times


class DirectConnection:
    """A driver's connection for SQLAlchemy statements, with the needed part of `sqlalchemy.Connection`."""

    together = True  # whether several statements may go in one round trip; turned off to see each separately

    def __init__(self, connection: Any, dialect: sa.Dialect) -> None:
        self.has_failed = False  # whether a statement raised an error, even one that its caller handled
        self._connection = connection
        self.dialect = dialect

    def execute(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> FetchedRows:
        """Run a statement, once or for each of several parameters; reuse the object, because it is compiled once."""
        if isinstance(parameters, Sequence):
            return self._execute_many(statement, parameters)
        compiled = compile_once(statement, self.dialect)
        given = parameters or {}
        text = compiled.text_with(given) if compiled.in_text else compiled.text
        values = compiled.constants.copy()  # as `compiled.values` does, without one more call for each statement
        for compute, places in compiled.computed:
            value = compute()
            for place in places:
                values[place] = value
        for name, process, places in compiled.given:
            value = given[name] if process is None else process(given[name])
            for place in places:
                values[place] = value
        cursor = self._translated(self._connection.execute, text, values)
        found = FetchedRows()
        found.rowcount = cursor.rowcount
        if compiled.columns:
            found.extend(map(compiled.reading or self._learn(compiled, cursor), cursor.fetchall()))
        return found

    def _learn(self, compiled: CompiledStatement, cursor: Any) -> Callable[[Sequence[Any]], Any]:
        compiled.reading = reading = _row_reader(compiled.columns, cursor.description, self.dialect)
        return reading

    def _execute_many(self, statement: sa.Executable, parameters: Sequence[Mapping[str, Any]]) -> FetchedRows:
        keys = tuple(parameters[0]) if isinstance(statement, sa.Insert) else None
        compiled = compile_once(statement, self.dialect, keys)
        given = list(map(compiled.values, parameters))
        cursor = self._connection.cursor()
        self._translated(cursor.executemany, compiled.text, given)
        found = FetchedRows()
        found.rowcount = cursor.rowcount
        return found

    def scalars(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a statement, and return the first column."""
        return list(map(itemgetter(0), self.execute(statement, parameters)))

    def exec_driver_sql(self, text: str, parameters: Any = None) -> Any:
        """Run a raw SQL statement; read its rows to the end.

        Returns the driver's cursor, with ``rowcount`` and tuples. Raises errors as SQLAlchemy would.
        """
        return self._translated(self._connection.execute, text, () if parameters is None else parameters)

    def runs(self, frame: Frame) -> Callable[[str], Any]:
        """Return a function that runs the frame's statements, with errors as SQLAlchemy would raise them."""
        return partial(self._translated, frame.run, self._connection)

    def _translated(self, execute: Callable[[Any, Any], Any], *given: Any) -> Any:
        driver_error = self.dialect.loaded_dbapi.Error
        try:
            return execute(*given)
        except BaseException as error:
            self.has_failed = True
            if isinstance(error, driver_error):
                at = next(at for at, one in enumerate(given) if isinstance(one, str))
                raise self._wrapped(error, given[at], *given[at + 1 :]) from error
            if isinstance(error, MISFITS):
                raise exc.DataError(None, None, error) from error
            raise

    def _wrapped(self, error: Any, text: str, parameters: Any = None) -> exc.DBAPIError:
        broken = self.dialect.is_disconnect(error, self._connection, None)
        return wrapped(error, self.dialect, text, parameters, broken=broken)


class PipelinedConnection(DirectConnection):
    """A `DirectConnection` whose statements share round trips, which on a network cost more than most statements.

    The transaction begins with its first statement, and statements without a needed answer go with the next one, or
    with the commit. One pipeline spans the whole transaction. It is synced after each exchange except the last, which
    ends when the pipeline is left: psycopg then sends a Flush after the Sync. The server measures a transaction's
    silence (`LONGEST_SILENCE`) from its answer to a Sync until the next message. A Flush, which has no answer, would
    stop that measurement for good.

    The transaction's ``frame`` must support pipelines.
    """

    def __init__(self, connection: Any, dialect: sa.Dialect, frame: Frame) -> None:
        super().__init__(connection, dialect)
        assert frame.together is not None  # noqa: S101  # else it is a DirectConnection
        self._frame = frame
        self._open_pipeline = frame.together
        self._pipeline: Any = None
        self._leaving = ExitStack()
        self._ahead: list[_Sent] = [(text, None) for text in frame.begin]  # sent before the next statement
        self._has_begun = self._has_ended = False

    def runs(self, frame: Frame) -> Callable[[str], Any]:
        """Return a function that runs the frame's statements; it begins and ends only non-empty transactions.

        After an error nothing is rolled back, because closing the connection does that, and nothing can be committed.
        """

        def run_in_time(text: str) -> None:
            if text == frame.commit and self.has_failed:
                raise exc.PendingRollbackError("cannot commit: a statement of the transaction failed")
            has_something = self._has_begun or (text == frame.commit and len(self._ahead) > len(frame.begin))
            if text not in frame.begin and has_something and not (self._has_ended or self.has_failed):
                self._exchange([(text, None)])

        return run_in_time

    def leave_closed(self) -> None:
        """Leave the pipeline of a closed connection, ignoring its error."""
        with suppress(Exception):
            self._leaving.close()

    def execute(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> FetchedRows:
        """Run a statement as `DirectConnection.execute` does, with the queued ones."""
        return self.execute_all([(statement, parameters or {})])[0]

    def execute_later(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> None:
        """Queue a statement whose answer is not needed, to go with the next one."""
        self._ahead.append(self._lay_out(statement, parameters)[1])

    def execute_all(self, asked: Sequence[Asked], *, commit: bool = False) -> list[FetchedRows]:
        """Run statements one after the other in one round trip; `execute_all` explains it."""
        laid_out = [self._lay_out(statement, values) for statement, values in asked]
        sent = [one for _, one in laid_out]
        first = len(self._ahead)
        cursors = self._exchange([*sent, (self._frame.commit, None)] if commit else sent)
        return [self._found(one, cursor) for (one, _), cursor in zip(laid_out, cursors[first:], strict=False)]

    def exec_driver_sql(self, text: str, parameters: Any = None) -> Any:
        """Run a raw SQL statement as `DirectConnection.exec_driver_sql` does, with the queued ones."""
        return self._exchange([(text, () if parameters is None else parameters)])[-1]

    def _exchange(self, sent: Sequence[_Sent]) -> list[Any]:
        """Send the queued statements and then these, and return the driver's cursors for both."""
        assert not self._has_ended  # noqa: S101  # later statements would be in no transaction
        every = [*self._ahead, *sent]
        self._ahead.clear()
        self._has_begun = True
        self._has_ended = bool(every) and every[-1][0] in (self._frame.commit, self._frame.rollback)
        cursors: list[Any] = []
        driver_error = self.dialect.loaded_dbapi.Error
        try:
            if self._pipeline is None:
                self._pipeline = self._leaving.enter_context(self._open_pipeline(self._connection))
            for text, given in every:
                cursors.append(self._send(text, given))
            if self._has_ended:
                self._leaving.close()
            else:
                self._pipeline.sync()
        except BaseException as error:
            self.has_failed = True
            cause = _first(error.orig if isinstance(error, exc.DBAPIError) else error, driver_error)
            if not isinstance(cause, driver_error):
                raise
            named = self._wrapped(cause, *every[_failed(cause, cursors, len(every))])
            lost = isinstance(cause, self.dialect.loaded_dbapi.OperationalError) and not _state(cause)
            named.connection_invalidated |= lost or bool(getattr(error, "connection_invalidated", False))
            raise named from cause
        return cursors

    def _send(self, text: str, given: Any) -> Any:
        if given is None:
            return self._translated(self._frame.run, self._connection, text)
        cursor = self._connection.cursor()  # one each, because their answers come later
        self._translated(cursor.executemany if isinstance(given, list) else cursor.execute, text, given)
        return cursor

    def _lay_out(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[CompiledStatement, _Sent]:
        """Compile a statement, and return it with its values, or with those of each run as a list."""
        if not isinstance(parameters, Sequence):
            compiled = compile_once(statement, self.dialect, None)
            return compiled, (compiled.text_with(parameters), compiled.values(parameters))
        # An INSERT of many rows gets its columns from them.
        columns = tuple(parameters[0]) if isinstance(statement, sa.Insert) else None
        compiled = compile_once(statement, self.dialect, columns)
        return compiled, (compiled.text, list(map(compiled.values, parameters)))

    def _found(self, compiled: CompiledStatement, cursor: Any) -> FetchedRows:
        found = FetchedRows()
        found.rowcount = cursor.rowcount
        if compiled.columns:
            found.extend(map(compiled.reading or self._learn(compiled, cursor), cursor.fetchall()))
        return found


def _state(error: BaseException) -> str | None:
    return getattr(error, "sqlstate", None)


def _first(error: BaseException | None, driver_error: type[Exception]) -> BaseException | None:
    """Return the driver's error that caused this one: a pipeline that cannot be left raises one of its own."""
    while error is not None and _state(error) is None and isinstance(error.__context__, driver_error):
        error = error.__context__
    return error


def _failed(error: BaseException, cursors: Sequence[Any], count: int) -> int:
    """Return which of ``count`` statements sent at once failed; ``cursors`` are those of the sent ones."""
    # The server's answer to one may be read while a later one is sent; an error of the driver concerns the later one.
    if _state(error) is not None:
        for at, cursor in enumerate(cursors):
            if cursor.pgresult is None or cursor.pgresult.status > _WELL:
                return at
    return min(len(cursors), count - 1)


def execute_later(connection: SqlConnection, *asked: Asked) -> None:
    """Run statements whose answers are not needed: with the next one, if that saves a round trip."""
    later = connection.execute_later if isinstance(connection, PipelinedConnection) else connection.execute
    for statement, values in asked:
        later(statement, values)


def execute_all(connection: SqlConnection, asked: Sequence[Asked], *, commit: bool = False) -> Sequence[SqlRows]:
    """Run statements one after the other, in one round trip if possible.

    Each sees the effects of those before it, and commits of others.

    ``commit`` says whether they are the last of a transaction, which may be committed with them.
    """
    if isinstance(connection, PipelinedConnection):
        return connection.execute_all(asked, commit=commit)
    return [connection.execute(statement, values) for statement, values in asked]


class DirectConnectionPool:
    """A pool of connections for `DirectConnection`. Thread-safe.

    They are not pinged before use, because all work on them can be, and is, retried.
    """

    KEPT = 8  # maximum number of idle connections

    def __init__(
        self,
        engine: sa.Engine,  # opens them
        set_up: Callable[[Any], None],  # prepares a new connection
        is_whole: Callable[[Any], bool],  # returns whether a connection is idle and intact
        *,
        outlives_errors: bool,  # whether an intact connection may be reused after an error of the driver
    ) -> None:
        self._engine = engine
        self._within: float | None = engine.get_execution_options().get(ANSWERS_WITHIN)
        self._set_up = set_up
        self._is_whole = is_whole
        self._outlives_errors = outlives_errors
        self._idle: deque[Any] = deque()

    def lend(self, frame: Frame | None, *, durable: bool = True) -> AbstractContextManager[DirectConnection]:
        """Check out a connection for the block. Raises errors as SQLAlchemy would.

        ``frame`` is that of a transaction around the block; None: each statement commits. ``durable`` says whether a
        commit must survive a crash of the computer. False is for data that concerns only processes of the same
        computer, which do not survive either; on a server every commit survives.
        """
        return _Alone(self) if frame is None else self.lend_in(frame, durable=durable)

    @contextmanager
    def lend_in(self, frame: Frame, *, durable: bool) -> Generator[DirectConnection]:
        """Check out a connection in a transaction; see `lend`."""
        connection = self.take()
        at_once = frame.together is not None and DirectConnection.together
        dialect = self.dialect
        direct = PipelinedConnection(connection, dialect, frame) if at_once else DirectConnection(connection, dialect)
        run = direct.runs(frame)
        hurries = bool(frame.hurry) and not durable
        may_stay = False
        try:
            if hurries:
                run(frame.hurry)
            for text in frame.begin:
                run(text)
            yield direct
            run(frame.commit)
            if hurries:
                run(frame.wait)
            may_stay = self._outlives_errors or not direct.has_failed
        except BaseException as error:
            # If it broke, the transaction ends with the connection.
            if not self._is_whole(connection):
                with suppress(exc.DBAPIError):
                    run(frame.rollback)
            if hurries and self._is_whole(connection):
                run(frame.wait)
            # A statement may still be running on an interrupted connection.
            may_stay = (
                isinstance(error, Exception)
                and (self._outlives_errors or not direct.has_failed)
                and self._is_whole(connection)
            )
            if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
                self.close()
            raise
        finally:
            (self.keep if may_stay else _close)(connection)
            if isinstance(direct, PipelinedConnection) and not may_stay:
                direct.leave_closed()

    def close(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):
            while True:
                _close(self._idle.pop())

    def leave(self) -> list[Any]:
        """Drop idle connections without closing them; return them."""
        left, self._idle = list(self._idle), deque()
        return left

    @cached_property
    def dialect(self) -> sa.Dialect:
        """The dialect by which statements are compiled; known after the first connection."""
        return alike(self._engine.dialect)

    def take(self) -> Any:
        """Check out a driver's connection."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        if self._within is not None or mine.seconds is not None:
            lent(connection, self._within)
        return connection

    def keep(self, connection: Any) -> None:
        """Take back an intact connection."""
        if self._within is not None or mine.seconds is not None:
            returned(connection)
        if len(self._idle) < self.KEPT:
            self._idle.append(connection)
        else:
            _close(connection)

    def _open(self) -> Any:
        dialect = self._engine.dialect
        driver_error = dialect.loaded_dbapi.Error
        connection: Any = None
        try:
            pooled = self._engine.raw_connection()
            connection = pooled.driver_connection
            pooled.detach()
            lent(connection, self._within)
            self._set_up(connection)
        except driver_error as error:
            _close(connection)
            raise wrapped(error, dialect) from error
        return connection


class _Alone:
    """Lends a connection on which each statement commits. As a generator, it takes six more calls a statement."""

    def __init__(self, pool: DirectConnectionPool) -> None:
        self._pool = pool

    def __enter__(self) -> DirectConnection:
        self._connection = self._pool.take()
        self._direct = DirectConnection(self._connection, self._pool.dialect)
        return self._direct

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
            self._pool.close()  # others of its age are broken, too
        # After any error, a statement may be running on it.
        (self._pool.keep if error is None and not self._direct.has_failed else _close)(self._connection)


def _close(connection: Any) -> None:
    returned(connection)
    with suppress(Exception):
        connection.close()
