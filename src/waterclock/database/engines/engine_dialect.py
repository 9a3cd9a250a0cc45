"""The interface of the database-specific code for engines, transactions and errors. Each database has a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.driver_fast_path import Frame
from waterclock.database.engines.writer_queue import WriterQueue
from waterclock.database.sql_connection import SqlConnection

FULL = "its disk is full, or it has reached its maximum size"
READ_ONLY = "it is read-only"
FORBIDDEN = "permission is denied"
BROKEN = "its disk or file system reported an error"


LONGEST_SILENCE = 15
"""Seconds for which a client may be silent in our transaction with locks before the server ends it. So a frozen
process, or one whose host is gone, holds locks no longer. Callers' transactions have no such limit.
"""

LONGEST_LOCK_WAIT = 30
"""Seconds for which our transaction waits for a lock, if the server sets no lower limit: even for one that its own
thread holds in a caller's transaction, which would otherwise never end.
"""

OURS = "waterclock_ours"  # execution option of transactions that end if the client is silent for so long


class EngineDialect(ABC):
    """The database-specific part of a backend. Its methods that are not abstract fit most databases."""

    name: str  # ``"sqlite"``, ``"postgresql"`` or ``"mysql"``, which is MariaDB's scheme in URLs, and its extra

    longest_pause: float  # maximum seconds to wait before a failed transaction is retried

    frame: Frame | None
    """The frame of a transaction on the driver's connection (`DirectConnection`); None if SQLAlchemy is as fast."""

    commits_each: bool  # whether work of one statement runs better without the frame, which saves round trips

    outlives_errors: bool
    """Whether a driver's connection may be reused after an error: not if the driver caches prepared statements."""

    long_transactions: sa.TextClause | None
    """Asks for the transactions that have been open for more than ``longest`` seconds, and for which the server keeps
    rows that were changed since: process, seconds, user and program. The process of a prepared transaction is 0, and
    its program is its name. The seconds of a process that the server does not show to this user are NULL. None if
    readers do not make writers slower."""

    stored_size: sa.TextClause
    """Asks for the bytes of the database, those of them that are free, and the transactions whose old versions of rows
    it keeps; NULL: not known."""

    stored_tables: sa.TextClause | None
    """Asks for at most ``most`` of our tables: name, estimated rows, dead rows, bytes, bytes of indexes, and when dead
    rows were last removed, ns; None if only reading a table shows its size."""

    def log_size(self, url: sa.URL) -> int | None:
        """Return the bytes of the write-ahead log, if it grows while a reader holds an old snapshot.

        On servers it does not: old versions of rows are in the tables, or in a log that the server counts.
        """
        del url
        return None

    @abstractmethod
    def create_engine(self, url: sa.URL) -> sa.Engine:
        """Create an engine whose connections are configured for durable, concurrent use."""

    def is_missing(self, url: sa.URL) -> bool:
        """Return whether the database is a file that connecting would create; a server creates none."""
        del url
        return False

    def prepare_catalogue(self, engine: sa.Engine) -> None:
        """Configure the database before its catalogue is created; servers need nothing."""
        del engine

    @abstractmethod
    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine in the form for write transactions."""

    def for_callers(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine in the form for callers' transactions; on servers their own settings apply."""
        return engine

    def turns(self, url: sa.URL) -> WriterQueue | None:
        """Return the queue of writers; None for servers, which wake a transaction when its row is free."""
        del url
        return None

    def set_up_direct(self, connection: Any) -> None:
        """Prepare a driver's connection for frequent statements, if the database has a `frame`."""
        del connection

    def is_whole(self, connection: Any) -> bool:
        """Return whether a driver's connection is idle and intact, if the database has a `frame`."""
        del connection
        return False

    def indexed(self, engine: sa.Engine) -> sa.Engine:
        """Return a writer or reader in the form for frequent statements on fast growing tables.

        Their plans use indexes whatever the statistics say. MariaDB plans each statement when it runs, and SQLite
        always uses an index without statistics.
        """
        return engine

    @abstractmethod
    def reader(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine in the form for transactions that read one snapshot."""

    def uncommitted_reader(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine in the form for transactions that also read uncommitted changes, if the database can."""
        return self.reader(engine)

    @abstractmethod
    def now(self) -> sa.ColumnElement[int] | None:
        """Return the SQL expression of the database's clock in ns, or None if it has only its host's."""

    @abstractmethod
    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Return whether a retry of the transaction may succeed: busy, deadlock, serialization."""

    def has_stale_plan(self, error: exc.DBAPIError) -> bool:
        """Return whether a statement failed because its table was altered after the session had prepared it.

        It can only fail so if the server does not plan it again by itself.
        """
        del error
        return False

    @abstractmethod
    def too_large(self, error: exc.DBAPIError) -> str | None:
        """Return which limit of the database a value or statement exceeds, and the remedy; None for other errors."""

    @abstractmethod
    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Return why the database as a whole cannot be written or read, as `FULL` and others; None for other errors."""

    def timed_out(self, error: exc.DBAPIError) -> bool:
        """Return whether a time limit ended the statement: the server's, the session's, or an operator's.

        A file sets no limits, and has no roles.
        """
        del error
        return False

    def is_forbidden(self, error: exc.DBAPIError) -> bool:
        """Return whether the user lacks a privilege for the statement."""
        del error
        return False

    def violates_constraint(self, error: exc.DBAPIError) -> bool:
        """Return whether a constraint refused the statement."""
        return isinstance(error, exc.IntegrityError)

    def keeps_to_a_snapshot(self, connection: SqlConnection) -> bool:
        """Return whether a caller's transaction does not see changes of others since it began to read.

        On MariaDB and SQLite, its writes see the newest rows, or are refused.
        """
        del connection
        return False

    @abstractmethod
    def lock_wait(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[object]:
        """Limit the lock waits of a transaction's statements to so many seconds, rounded to a second."""

    @abstractmethod
    def largest_value(self, connection: sa.Connection) -> int:
        """Return the maximum bytes of one value in a statement."""

    def size_in_statement(self, value: str | bytes) -> int:
        """Return how many of the bytes of `largest_value` a value takes."""
        return len(value) if isinstance(value, bytes) else len(value.encode())

    @abstractmethod
    def lock_migrations(self, connection: sa.Connection) -> None:
        """Allow one process at a time to migrate, until the transaction ends or `unlock_migrations`."""

    def unlock_migrations(self, connection: sa.Connection) -> None:
        """Release the lock for the next process that migrates, if it would outlive the transaction."""
        del connection
