"""A database: its engine, its transactions with retries, and its clock."""

from __future__ import annotations

import copy
import random
import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar, cast, overload

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock._support import moments
from waterclock._support.pickling import warn_of_secret
from waterclock._support.quoting import quoted
from waterclock._support.urls import redacted, shown
from waterclock.database.deadlines import ANSWERS_WITHIN, LONGEST_STATEMENT, SLACK, is_over, watch_pool
from waterclock.database.driver_fast_path import DirectConnectionPool
from waterclock.database.engines.database_url import DIALECTS, parse_url
from waterclock.database.engines.explicit_updates import compile_explicitly
from waterclock.database.engines.sqlite import SqliteDialect
from waterclock.database.engines.sqlite_file import file_of
from waterclock.database.failures import failure
from waterclock.database.forking import Calls, prepare_for_forks
from waterclock.database.migrating import HEAD, catalogue_version, check_version, migrate
from waterclock.database.per_database_cache import note_closed
from waterclock.database.shared_compile_cache import COMPILED
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.wrapping import UNWRITABLE, wrap_unwritable, wrapped
from waterclock.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    WaterclockError,
)
from waterclock.time import Clock, system_clock

TIMEOUT = 30.0
"""Seconds for which a call waits for a busy or unavailable database, unless `waterclock.connect` sets them."""

FAILURES = (exc.StatementError, exc.TimeoutError)
"""Errors of statements and connections. SQLAlchemy's other errors are mistakes of its caller."""

_T = TypeVar("_T")

_FIRST_PAUSE = 0.001
_READING_LASTS = 1_000_000_000  # ns
_SESSION_BITS = 63  # of a bigint, without its sign

_parents: list[object] = []
"""Connections of the parent of a forked process: kept, because dropping the references would close them."""


class _Written(threading.local):
    """The SQLite files to which this thread is writing in our own transactions."""

    def __init__(self) -> None:
        self.files: set[str | None] = set()  # None: of a server


_written = _Written()


class Backend:
    """An open database. Thread-safe.

    ``url`` is SQLAlchemy's: ``sqlite:///file``, ``postgresql://…`` or ``postgres://…``, ``mysql://…`` or
    ``mariadb://…``. ``clock`` replaces the database's clock, for tests and simulations. ``create`` and ``timeout``, in
    seconds, are as in `waterclock.connect`; no timeout: `TIMEOUT`.
    """

    def __init__(
        self, url: str, *, clock: Clock | None = None, create: bool | None = None, timeout: float | None = None
    ) -> None:
        self.url = parse_url(url)  # with its driver; show `name` instead
        self.name = shown(self.url)  # without secrets
        self._timeout = TIMEOUT if timeout is None else timeout
        self.dialect = DIALECTS[self.url.get_backend_name()]()
        try:
            # For callers who run statements of their own, with a pool of its own: connections that they hold never
            # delay our calls.
            self.engine = self.dialect.create_engine(self.url)
            compile_explicitly(self.engine.dialect)
            self.engine.update_execution_options(compiled_cache=COMPILED)
            wrap_unwritable(self.engine)
            if self.dialect.name != "sqlite":  # no network lies between
                watch_pool(self.engine, self._timeout)
            # With a pool of its own: otherwise connections that callers hold could make our calls wait.
            self._own = copy.copy(self.engine)
            pool: Any = self.engine.pool.recreate()
            pool.dispatch = self.engine.pool.dispatch  # event listeners for connections of one apply to both
            self._own.pool = pool
            if self.dialect.name != "sqlite":
                self._own.update_execution_options(**{ANSWERS_WITHIN: self._timeout + SLACK})
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"cannot open {shown(url)}: {error.name} is not installed. Install the extra '{self.dialect.name}'"
            ) from error
        except InvalidArgumentError:
            raise
        except (exc.ArgumentError, TypeError, ValueError) as error:
            raise self._wrong_url(error) from None
        self._patience = threading.local()
        self.session = secrets.randbits(_SESSION_BITS)  # unique to this open database, in any process
        self._when_closed: set[Callable[[Backend], object]] = set()
        self._turns = self.dialect.turns(self.url)
        self._file = str(file_of(self.url).absolute()) if self.dialect.name == "sqlite" else None
        self._calls = Calls(self._file)
        self._writer = self.dialect.writer(self._own)
        self._direct = DirectConnectionPool(
            self._own, self.dialect.set_up_direct, self.dialect.is_whole, outlives_errors=self.dialect.outlives_errors
        )
        self._reader = self.dialect.reader(self._own)
        self._indexed_writer = self.dialect.indexed(self._writer)
        self._indexed_reader = self.dialect.indexed(self._reader)
        self._given_clock = clock
        expression = self.dialect.now()
        self._clock = clock or (system_clock if expression is None else None)
        self._reading = (-_READING_LASTS - 1, 0)
        # One object for all statements and databases: compiling them takes longer than running them.
        self._now_sql = cast("sa.ColumnElement[int]", expression) if self._clock is None else _time_of(self._clock)
        self._has_catalogue = False
        try:
            if create:
                self.create_catalogue()
            elif not self.has_catalogue() and create is False:
                raise self._no_catalogue()
        except WaterclockError:
            self._give_back()
            raise
        prepare_for_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle its URL, to be opened again; an SQLite file by its full path."""
        url = self.url
        if self._file is not None and not str(url.database).startswith("file:"):
            url = url.set(database=self._file)
        text = url.render_as_string(hide_password=False)
        warn_of_secret(self.name, text, shown(text))
        return _reopened, (text, self._given_clock, self._timeout)

    def has_catalogue(self) -> bool:
        """Return whether the database has a catalogue.

        Raises `SchemaError` if the catalogue is of another version.
        """
        if not self._has_catalogue:
            version = self._catalogue_version()
            if version is not None:
                check_version(version, self.name)
            self._has_catalogue = version is not None
        return self._has_catalogue

    def create_catalogue(self) -> None:
        """Create the catalogue if the database has none, or migrate an older one to this version.

        Raises `SchemaError` if a newer library wrote the catalogue. Raises `UnavailableError` if the database cannot be
        opened, or refuses the tables.
        """
        if self._has_catalogue:
            return
        version = self._catalogue_version()
        if version is None or version < HEAD:
            self._migrate(version)
        else:
            check_version(version, self.name)
        self._has_catalogue = True

    def _require_catalogue(self) -> None:
        if not self.has_catalogue():
            raise self._no_catalogue()

    def _no_catalogue(self) -> NotFoundError:
        remedy = "Run 'waterclock init', or create a topic or message table"
        if self.dialect.is_missing(self.url):
            return NotFoundError(f"no database file {quoted(str(file_of(self.url)))} found. {remedy}")
        return NotFoundError(f"no Waterclock catalogue found in {self.name}. {remedy}")

    def _migrate(self, version: str | None) -> None:
        # It may also wait for another process that migrates.
        patient = self._writer.execution_options(**{ANSWERS_WITHIN: LONGEST_STATEMENT})
        try:
            self.dialect.prepare_catalogue(self._own)
            self._run(patient.begin, lambda connection: migrate(connection, self.dialect))
        except exc.DBAPIError as error:
            raise self._cannot_open(error) from self.cause(error)
        except UnavailableError as error:
            has = "no catalogue" if version is None else f"catalogue version {version}"
            raise UnavailableError(
                f"cannot migrate the catalogue: the database has {has}, and this library needs version {HEAD}: {error}"
            ) from error
        except RefusedError as error:
            raise UnavailableError(f"cannot open {self.name}: {error}") from error.__cause__

    def said(self, error: BaseException) -> str:
        """Return the driver's text of an error, without the URL's secrets."""
        return redacted(getattr(error, "orig", None) or error, self.url)

    def cause(self, error: BaseException) -> BaseException | None:
        """Return an error to raise from; None if its own text, which a traceback shows, holds a secret."""
        texts = [str(error), *map(str, getattr(getattr(error, "orig", None), "args", ()))]
        return error if all(redacted(text, self.url) == text for text in texts) else None

    def _catalogue_version(self) -> str | None:
        if self.dialect.is_missing(self.url):  # connecting would create it
            return None
        try:
            with self._calls.lock, self._reader.connect() as connection:
                return catalogue_version(connection)
        except (TypeError, ValueError) as error:  # the driver's, about an option in the URL's query
            raise self._wrong_url(error) from None
        except exc.DBAPIError as error:
            raise self._cannot_open(error) from self.cause(error)

    def _cannot_open(self, error: exc.DBAPIError) -> WaterclockError:
        kind = ForbiddenError if self.dialect.is_forbidden(error) else UnavailableError
        reason, said = self.dialect.refusal(error), self.said(error)
        return kind(f"cannot open {self.name}: {said if reason is None else f'{reason} ({said})'}")

    def _wrong_url(self, error: Exception) -> InvalidArgumentError:
        # Raised from None: the driver's own error may quote the URL with secrets.
        return InvalidArgumentError(f"cannot use the database URL {self.name!r}: {self.said(error)}")

    @overload
    def transact(self, work: Callable[[sa.Connection], _T], *, durable: bool = True) -> _T: ...

    @overload
    def transact(self, work: Callable[[SqlConnection], _T], *, indexed: bool, durable: bool = True) -> _T: ...

    def transact(self, work: Callable[[Any], _T], *, indexed: bool = False, durable: bool = True) -> _T:
        """Run ``work`` in one write transaction and commit; retry from the start if the database was busy.

        ``work`` may therefore run more than once: all its effects must go through its connection.

        Raises `UnavailableError` if the database stayed busy, deadlocked or unavailable for the timeout, is full, or is
        not writable; a TimedOutError if a time limit there ended a statement. Raises `RefusedError` if the database
        refuses a statement: a ConstraintError or a ForbiddenError if that is the reason. Raises `InvalidArgumentError`
        if the database cannot store a value.

        ``indexed`` says whether its statements run very often, on tables that may grow fast: their plans then use
        indexes whatever the database's statistics say. If that is faster, ``work`` gets a `DirectConnection`. It must
        not put messages, for which each statement of a `DirectConnection` has to commit separately. ``durable`` is as
        in `DirectConnectionPool.lend`, if ``work`` gets a `DirectConnection`.
        """
        if not self._has_catalogue:
            self._require_catalogue()
        if indexed and self.dialect.frame is not None:
            return self._run(partial(self._direct.lend_in, self.dialect.frame, durable=durable), work)
        return self._run((self._indexed_writer if indexed else self._writer).begin, work)

    @contextmanager
    def lend(self) -> Generator[sa.Connection]:
        """Yield a transaction that commits when the block ends, or rolls back on an error.

        Raises `WaterclockError` as in `transact`, if it cannot begin or commit.
        """
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self.dialect.for_callers(self.engine).connect())
                transaction = stack.enter_context(connection.begin())
            except FAILURES as error:
                raise self._failure(error, f"{self.name} cannot be written to") from self.cause(error)
            yield connection
            if transaction.is_active:  # the block may have ended it
                try:
                    transaction.commit()
                except FAILURES as error:
                    raise self._failure(error, f"cannot commit to {self.name}") from self.cause(error)

    def alone(self, work: Callable[[SqlConnection], _T], *, durable: bool = True) -> _T:
        """Run ``work`` like `transact`, but each statement may commit separately: for a single statement.

        Raises `WaterclockError` as in `transact`. ``durable`` is as in `DirectConnectionPool.lend`.
        """
        if not self._has_catalogue:
            self._require_catalogue()
        if self.dialect.frame is None:
            return self._run(self._writer.begin, work)
        frame = None if self.dialect.commits_each else self.dialect.frame
        return self._run(partial(self._direct.lend, frame, durable=durable), work)

    def _run(self, begin: Callable[[], AbstractContextManager[Any]], work: Callable[[Any], _T]) -> _T:
        files = _written.files
        if self._file is not None and self._file in files:
            return self._run_at_once(begin, work)
        patience: float = getattr(self._patience, "seconds", self._timeout)
        give_up_at = moments.monotonic() + patience
        turn = None if self._turns is None else self._turns.turn(patience)
        try:
            pause = _FIRST_PAUSE
            while True:
                try:
                    files.add(self._file)
                    with self._calls.lock, begin() as connection:
                        return work(connection)
                except FAILURES as error:
                    if not self._may_pass(error):
                        raise self._failure(error, f"cannot write to {self.name}") from self.cause(error)
                    left = give_up_at - moments.monotonic()
                    if left <= 0:
                        was = f"{self.name} was busy or did not answer for {patience:g} s"
                        raise self._failure(error, was) from self.cause(error)
                finally:
                    files.discard(self._file)
                if self._turns is not None and turn is not None:
                    if pause == _FIRST_PAUSE:
                        turn.close()
                        turn = self._turns.turn(left, with_others=True)
                    elif moments.monotonic() >= turn.ends_at:
                        turn.close()
                # Jitter, so that colliding writers do not collide again.
                moments.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # not a secret
                pause = min(pause * 2, self.dialect.longest_pause)
        finally:
            if turn is not None:
                turn.close()

    def _run_at_once(self, begin: Callable[[], AbstractContextManager[Any]], work: Callable[[Any], _T]) -> _T:
        """Run ``work`` during another write of this thread, which may have the write lock, and waits for this one."""
        try:
            with self._calls.lock, begin() as connection:
                return work(connection)
        except FAILURES as error:
            was = f"cannot write to {self.name}"
            if self._may_pass(error):
                was += (
                    " in a signal handler, or a finalizer, that interrupted a write of its thread. Write later, or in"
                    " another thread"
                )
            raise self._failure(error, was) from self.cause(error)

    def _may_pass(self, error: Exception) -> bool:
        if not isinstance(error, exc.DBAPIError) or self.dialect.refusal(error) is not None:
            return False
        if self.dialect.too_large(error) is not None:  # a server that hangs up because of it is not unavailable
            return False
        return self.dialect.is_transient(error)

    def _failure(self, error: Exception, unavailable: str) -> WaterclockError:
        return failure(error, self.dialect, self.name, self.said(error), unavailable)

    @contextmanager
    def patience(self, seconds: float) -> Generator[None]:
        """Limit the time, in seconds, that this thread's transactions wait: for callers with alternatives."""
        before: float = getattr(self._patience, "seconds", self._timeout)
        self._patience.seconds = seconds
        try:
            yield
        finally:
            self._patience.seconds = before

    def transact_within(self, seconds: float, work: Callable[[sa.Connection], _T]) -> _T:
        """Run ``work`` like `transact`, but give up after so many seconds, even if others have locked its rows."""

        def hurried(connection: sa.Connection) -> _T:
            with self.dialect.lock_wait(connection, seconds):
                return work(connection)

        with self.patience(seconds):
            return self.transact(hurried)

    def give_back_space(self) -> None:
        """Return an SQLite file's free space to the file system, in short transactions; servers reuse their own."""
        if isinstance(self.dialect, SqliteDialect):
            while self.transact(self.dialect.give_back_space):
                pass

    @contextmanager
    def snapshot(self, *, indexed: bool = False) -> Generator[sa.Connection]:
        """Open a read transaction in which every statement sees the same state; ``indexed`` as in `transact`.

        Raises `UnavailableError` if the database is busy or unavailable, or cannot be read. Raises `RefusedError` as in
        `transact`.
        """
        if not self._has_catalogue:
            self._require_catalogue()
        reader = self._indexed_reader if indexed else self._reader
        with self._calls.lock, self._reading_translated(), reader.connect() as connection, connection.begin():
            yield connection

    def look_at_uncommitted(self, work: Callable[[sa.Connection], _T]) -> _T:
        """Run read-only ``work``, which also sees uncommitted changes of other transactions, if the database can.

        Raises
        ------
        WaterclockError
            As in `snapshot`.
        """
        reader = self.dialect.uncommitted_reader(self._own)
        with self._calls.lock, self._reading_translated(), reader.connect() as connection, connection.begin():
            return work(connection)

    def is_ours(self, connection: SqlConnection) -> bool:
        """Return whether a transaction is ours, and short, rather than a caller's, who may use our engine, too."""
        return not isinstance(connection, sa.Connection) or connection.engine in (self._writer, self._indexed_writer)

    def look(self, work: Callable[[SqlConnection], _T]) -> _T:
        """Run read-only ``work`` in few round trips; its statements may see different states.

        Raises `WaterclockError` as in `snapshot`.
        """
        if not self.dialect.commits_each:
            with self.snapshot() as connection:
                return work(connection)
        if not self._has_catalogue:
            self._require_catalogue()
        began = moments.monotonic()
        with self._reading_translated():
            for _ in range(DirectConnectionPool.KEPT):
                try:
                    with self._direct.lend(None) as direct:
                        return work(direct)
                except exc.DBAPIError as error:
                    # If a cached one predates a restart, or has stale plans, another one follows.
                    may_pass = error.connection_invalidated or self.dialect.has_stale_plan(error)
                    if not may_pass or is_over(began):
                        raise
            with self._direct.lend(None) as direct:
                return work(direct)

    def now_sql(self) -> sa.ColumnElement[int]:
        """Return the clock as an SQL expression, ns: the database's own, or its replacement."""
        return self._now_sql

    def now(self, connection: SqlConnection | None = None) -> int:
        """Read the clock, ns. On a server this is a round trip, on ``connection`` if given.

        Raises `UnavailableError` if the database is busy or unavailable, and no connection was given.
        """
        if self._clock is not None:
            return self._clock()
        if connection is not None:
            return connection.execute(self._read_clock).scalar_one()
        with self._reading_translated(), self._reader.connect() as own:
            return own.execute(self._read_clock).scalar_one()

    @cached_property
    def _read_clock(self) -> sa.Select[int]:
        """The statement that reads the clock, as one object, because each is compiled once."""
        return sa.select(self.now_sql())

    @property
    def has_own_clock(self) -> bool:
        """Whether the clock is the database's own."""
        return self._clock is None

    def now_about(self) -> int:
        """Estimate the clock from a reading at most a second old, ns: never behind, ahead by at most a round trip."""
        if self._clock is not None:
            return self._clock()
        read_at, now = self._reading
        since = moments.monotonic_ns() - read_at
        if since > _READING_LASTS:
            began = moments.monotonic_ns()
            self._reading = (began, self.now())
            return self._reading[1]
        return now + since

    @contextmanager
    def _reading_translated(self) -> Generator[None]:
        try:
            yield
        except FAILURES as error:
            raise self._failure(error, f"cannot read {self.name} now") from self.cause(error)

    @contextmanager
    def translated(self, doing: str) -> Generator[None]:
        """Convert drivers' errors in the block to our own: for our statements outside our own transactions.

        ``doing`` is the operation, for the error, for example "listen to".
        """
        driver_error = self.engine.dialect.loaded_dbapi.Error
        try:
            yield
        except (exc.SQLAlchemyError, driver_error, *UNWRITABLE) as error:
            known = wrapped(error, self.engine.dialect) if isinstance(error, driver_error) else error
            raise self._failure(known, f"cannot {doing} {self.name} now") from self.cause(error)

    def driver_connection(self, doing: str) -> Any:
        """Open a driver connection that belongs to the caller and to no pool.

        Raises `UnavailableError` if the database is busy or unavailable; ``doing`` as in `translated`.
        """
        with self.translated(doing):
            pooled = self._own.raw_connection()
            connection = pooled.driver_connection
            pooled.detach()
            return connection

    @cached_property
    def largest_value(self) -> int:
        """Return the maximum bytes of one value in a statement."""
        with self._calls.lock, self._reading_translated(), self._reader.connect() as connection:
            return self.dialect.largest_value(connection)

    def close(self) -> None:
        """Close all connections. The backend can be used again: it opens new ones."""
        while self._when_closed:
            self._when_closed.pop()(self)
        self._give_back()
        if self._turns is not None:
            self._turns.close()
        note_closed()

    def _give_back(self) -> None:
        self._direct.close()
        self._own.dispose()
        self.engine.dispose()

    def before_fork(self) -> None:
        """Close idle connections."""
        self._give_back()

    def after_fork(self, *, in_child: bool) -> None:
        """Allow a child to open its own connections. Those that another thread returned meanwhile are the parent's."""
        if in_child:
            self.session = secrets.randbits(_SESSION_BITS)
            self._calls = Calls(self._file)  # the lock of an interrupted call refuses
            _parents.append((self.engine.pool, self._own.pool, self._direct.leave()))
            self.engine.dispose(close=False)
            self._own.dispose(close=False)

    def when_closed(self, give_back: Callable[[Backend], object]) -> None:
        """Register a callback for when the database is closed, once however often this is called."""
        self._when_closed.add(give_back)


def _reopened(url: str, clock: Clock | None, timeout: float) -> Backend:
    return Backend(url, clock=clock, timeout=timeout)


_MANY_CLOCKS = 16
_read: dict[int, sa.ColumnElement[int]] = {}


def _time_of(clock: Clock) -> sa.ColumnElement[int]:
    """Return an expression that reads a clock when a statement runs; one object for all databases with this clock."""
    if len(_read) >= _MANY_CLOCKS:
        _read.clear()
    # By identity, because a caller's clock may have no usable equality; it is kept alive, so its id stays unique.
    return _read.setdefault(id(clock), sa.bindparam("waterclock_now", callable_=clock, type_=sa.BigInteger))
