"""The engine for SQLite, the default database. Uses a write-ahead log, syncs every commit, and queues writers."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from waterclock._support.quoting import quoted
from waterclock._support.urls import shown
from waterclock.database.driver_fast_path import Frame
from waterclock.database.engines.engine_dialect import BROKEN, FORBIDDEN, FULL, READ_ONLY, EngineDialect
from waterclock.database.engines.sqlite_file import file_of, log_of, open_also_read_only
from waterclock.database.engines.writer_queue import WriterQueue
from waterclock.errors import InvalidArgumentError, UnavailableError

PAGE_SIZE = 8192
"""Bytes per page. A put or an ack of one message writes three or four whole pages to the log: with 16 KiB they took
1.05 to 1.17 times as long. With 4 KiB, calls with 20 messages of 3 KB took 1.1 to 1.2 times as long.
"""

PAGES_AT_ONCE = 128
"""Pages that one transaction returns to the file system, a megabyte: appends wait no longer than for the deletion that
freed them.
"""

_BEGIN = "waterclock_begin"
_WAITS = "waterclock_waits"
_PATIENCE = 30.0
"""Seconds for which SQLite waits: a reader, while another process opens, closes or repairs the database, and a caller's
transaction, for the write lock.
"""

_OPTIONS = ("cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout", "uri")
"""Allowed options in a URL's query; SQLAlchemy ignores all others with a warning."""
_TRANSIENT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REFUSALS = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_IOERR: BROKEN,
    sqlite3.SQLITE_READONLY: f"{READ_ONLY}: its file is not writable, or it was opened with mode=ro",
    sqlite3.SQLITE_READONLY_DIRECTORY: f"{READ_ONLY}: its folder is not writable",
    sqlite3.SQLITE_READONLY_DBMOVED: "its file was moved or removed while it was open",
    sqlite3.SQLITE_PERM: FORBIDDEN,
    sqlite3.SQLITE_AUTH: FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: f"its file, or one next to it, cannot be opened: {FORBIDDEN}, or a folder is missing",
}
_INCREMENTAL = 2  # of PRAGMA auto_vacuum
_PRIMARY_CODE = 0xFF  # the low byte of an extended result code, for example of SQLITE_BUSY_SNAPSHOT


class SqliteDialect(EngineDialect):
    """SQLite's `EngineDialect`."""

    name = "sqlite"
    long_transactions = None
    stored_size = sa.text("""
        SELECT pages.page_count * size.page_size, free.freelist_count * size.page_size, NULL
        FROM pragma_page_count() AS pages, pragma_page_size() AS size, pragma_freelist_count() AS free""")
    stored_tables = None
    longest_pause = 0.005  # the lock is free only for moments: infrequent tries wait long behind a busy writer
    commits_each = False
    outlives_errors = True
    frame = Frame(
        begin=("BEGIN IMMEDIATE",),
        commit="COMMIT",
        rollback="ROLLBACK",
        hurry="PRAGMA synchronous=NORMAL",
        wait="PRAGMA synchronous=FULL",
        run=sqlite3.Connection.execute,
    )

    def create_engine(self, url: sa.URL) -> sa.Engine:
        """Create an engine whose connections are durable: write-ahead log, synchronous=FULL."""
        if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
            raise InvalidArgumentError(
                f"url must name a file, such as sqlite:///factory.db, got {shown(url)!r}: other processes cannot see an"
                " in-memory database"
            )
        unknown = [name for name in url.query if name not in _OPTIONS]
        if unknown and "uri" not in url.query:
            raise InvalidArgumentError(
                f"Python's sqlite3 has no option named {quoted(unknown[0])} (in {shown(url)!r}); omit the option, or"
                " add uri=true if it is an option of SQLite"
            )
        engine = sa.create_engine(url, connect_args={"timeout": _PATIENCE, "check_same_thread": False})
        open_also_read_only(engine)
        event.listen(engine, "connect", _set_up)
        event.listen(engine, "begin", _begin)
        return engine

    def is_missing(self, url: sa.URL) -> bool:
        """Return whether the file is missing. A missing folder may be an unmounted disk, which is another error."""
        try:
            file = file_of(url)
            is_missing = not file.exists()
            has_folder = file.absolute().parent.is_dir()
        except OSError as error:
            raise UnavailableError(f"cannot open {shown(url)}: {error.strerror}") from error
        if is_missing and not has_folder:
            raise UnavailableError(f"cannot open {shown(url)}: its folder does not exist")
        return is_missing

    def prepare_catalogue(self, engine: sa.Engine) -> None:
        """Switch the file to a write-ahead log; without a catalogue it may be another program's, and have none."""
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            _set_log(driver)

    def log_size(self, url: sa.URL) -> int | None:
        """Return the size of the file of the write-ahead log."""
        try:
            return log_of(file_of(url)).stat().st_size
        except OSError:
            return 0

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Begin with the write lock: a transaction that reads first and writes later can fail for good."""
        return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    def for_callers(self, engine: sa.Engine) -> sa.Engine:
        """Begin with the write lock, too, but let SQLite wait for it: a caller is not in our queue of writers."""
        return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE", _WAITS: True})

    def turns(self, url: sa.URL) -> WriterQueue:
        """Queue for the write lock: there is one for the whole file, and SQLite wakes no waiting writer."""
        return WriterQueue(file_of(url).absolute())

    def set_up_direct(self, connection: Any) -> None:
        """Leave the waiting to the backend, which has jitter; SQLite's own starves writers."""
        connection.execute("PRAGMA busy_timeout=0")

    def is_whole(self, connection: Any) -> bool:
        """Ask the driver whether a transaction is open."""
        return not connection.in_transaction

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """Begin deferred: the first read fixes the snapshot."""
        return engine.execution_options(**{_BEGIN: "BEGIN"})

    def now(self) -> None:
        """SQLite has only its host's clock, to the millisecond; the process reads the same clock to the nanosecond."""
        return

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Busy or locked."""
        return _primary_code(error) in _TRANSIENT

    def too_large(self, error: exc.DBAPIError) -> str | None:
        """SQLITE_TOOBIG: a value, a row or a statement longer than SQLite was built for."""
        if _primary_code(error) != sqlite3.SQLITE_TOOBIG:
            return None
        with closing(sqlite3.connect(":memory:")) as connection:
            limit = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
        return f"SQLite takes at most {limit} bytes a row. Store large data elsewhere and its address here"

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Distinguish a full disk from a failing one and from a file that is not writable."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        return None if code is None else _REFUSALS.get(code, _REFUSALS.get(code & _PRIMARY_CODE))

    def lock_wait(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[object]:
        """Do nothing: a write transaction waits for nothing once it has begun."""
        del connection, seconds
        return nullcontext()

    def largest_value(self, connection: sa.Connection) -> int:
        """Ask the connection: a billion bytes, unless SQLite was built with another limit or it was lowered."""
        driver: Any = connection.connection.driver_connection
        return driver.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def give_back_space(self, connection: sa.Connection) -> bool:
        """Truncate some free pages off the file; return whether there are more.

        Does nothing in a file that another program created without ``auto_vacuum``.
        """
        driver: Any = connection.connection.driver_connection
        ((mode,),) = driver.execute("PRAGMA auto_vacuum").fetchall()
        ((free,),) = driver.execute("PRAGMA freelist_count").fetchall()
        if mode != _INCREMENTAL:
            return False
        for _ in range(min(free, PAGES_AT_ONCE)):  # one each: the driver runs only the first step of such a statement
            driver.execute("PRAGMA incremental_vacuum(1)")
        return free > PAGES_AT_ONCE

    def lock_migrations(self, connection: sa.Connection) -> None:
        """Do nothing: BEGIN IMMEDIATE holds the only write lock."""


def _primary_code(error: exc.DBAPIError) -> int | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY_CODE


def _set_up(connection: Any, _record: Any) -> None:
    connection.text_factory = _read_text
    connection.isolation_level = None  # the driver must not begin transactions itself
    cursor = connection.cursor()
    if cursor.execute("PRAGMA page_count").fetchone() == (
        0,
    ):  # a new file; for another one it would take the write lock
        cursor.execute(f"PRAGMA page_size={PAGE_SIZE:d}")
        _set(connection, "PRAGMA auto_vacuum=INCREMENTAL")  # costs a page in 3,277
    if cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'waterclock_migrations'").fetchone() is not None:
        _set_log(connection)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # On a table with triggers each statement keeps a small journal, for which a file would be created and removed.
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.close()


def _set_log(connection: Any) -> None:
    _set(connection, "PRAGMA journal_mode=WAL")


def _set(connection: Any, pragma: str) -> None:
    try:
        connection.execute(pragma)
    except sqlite3.OperationalError as error:
        # A read-only file is read as it is.
        if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_READONLY:
            raise


def _read_text(raw: bytes) -> str | bytes:
    # The driver would refuse to read the whole row; SQLite stores any bytes as text.
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    begin = options.get(_BEGIN, "BEGIN")
    # SQLite's own waiting starves writers, so the backend waits, with jitter.
    patience = 0 if begin == "BEGIN IMMEDIATE" and not options.get(_WAITS) else int(_PATIENCE * 1000)
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA busy_timeout={patience:d}")  # passing it through SQLAlchemy took as long as a short read
    connection.exec_driver_sql(begin)
