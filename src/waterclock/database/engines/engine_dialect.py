"""What differs between the databases for engines, transactions and errors, as one interface. Each has a file for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.driver_fast_path import Frame
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.writer_queue import Turns

FULL = "its disk is full, or it has reached its largest size"
READ_ONLY = "it is read-only"
FORBIDDEN = "permission is denied"
BROKEN = "its disk or file system reports an error"


LONGEST_SILENCE = 15
"""Seconds for which a client may leave a transaction of ours alone in which it locks, where there is a server: then
the server ends it. A process that is frozen, or whose host is gone, holds a lock that others need for no longer.
Transactions of callers have no such end."""

LONGEST_LOCK_WAIT = 30
"""Seconds for which a transaction of ours waits for a lock on a server that sets no lower limit: also
for one that its own thread holds in a caller's transaction, which nothing else would end."""

OURS = "waterclock_ours"
"""The execution option of transactions that end where the client says nothing for so long."""


class EngineDialect(Protocol):
    """One database's answers to the questions on which they differ."""

    name: str
    """``"sqlite"``, ``"postgresql"`` or ``"mysql"``, which is MariaDB by its scheme in URLs and its extra."""

    longest_pause: float
    """Seconds to wait before a transaction that could not run is tried again, at the longest."""

    frame: Frame | None
    """What makes a transaction straight on the driver's connection (`Direct`); None where SQLAlchemy is no slower."""

    commits_each: bool
    """Whether work of one statement does better without the frame there, which spares round trips."""

    outlives_errors: bool
    """Whether a driver's connection may be used again after an error: not if the driver remembers what it prepared."""

    long_transactions: sa.TextClause | None
    """Asks for the transactions that have been open for more than ``longest`` seconds, and for which the server keeps
    rows that were changed since: process, seconds, user and program; None where no reader makes writers slower."""

    def create_engine(self, url: sa.URL) -> sa.Engine:
        """Make an engine whose connections are set up for durable, concurrent use."""
        ...

    def is_missing(self, url: sa.URL) -> bool:
        """Return whether the database is a file that connecting would create."""
        ...

    def prepare_catalogue(self, engine: sa.Engine) -> None:
        """Set what the whole database needs before it gets a catalogue."""
        ...

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Give the engine's form whose transactions write."""
        ...

    def for_callers(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine's form whose transactions are lent to callers."""
        ...

    def turns(self, url: sa.URL) -> Turns | None:
        """Give the queue in which writers wait; None where the database has a better one."""
        ...

    def set_up_direct(self, connection: Any) -> None:
        """Prepare a driver's connection for statements that run very often, where the database has a `frame`."""
        ...

    def is_whole(self, connection: Any) -> bool:
        """Say whether a driver's connection is between two transactions, and in order."""
        ...

    def indexed(self, engine: sa.Engine) -> sa.Engine:
        """Give a writer or a reader in the form for statements that run very often, on tables that may grow fast.

        Their plans use indexes, for any size that the database believes a table has.
        """
        ...

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """Give the engine's form whose transactions read one snapshot."""
        ...

    def now(self) -> sa.ColumnElement[int] | None:
        """Give the SQL expression of the database's clock in ns, or None where the database has only its host's."""
        ...

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Say whether the same transaction may succeed when it is tried again: busy, deadlock, serialisation."""
        ...

    def has_stale_plan(self, error: exc.DBAPIError) -> bool:
        """Return whether a statement failed because its table was altered after the session had prepared it."""
        ...

    def too_large(self, error: exc.DBAPIError) -> str | None:
        """Return which limit of the database a value or statement exceeds, and the remedy; None for other errors."""
        ...

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Say why the database as a whole cannot be written to or read, as `FULL` and its like; None for others."""
        ...

    def timed_out(self, error: exc.DBAPIError) -> bool:
        """Say whether a limit of time ended the statement: the server's, the session's, or an operator."""
        ...

    def is_forbidden(self, error: exc.DBAPIError) -> bool:
        """Say whether the user lacks a privilege for the statement."""
        ...

    def keeps_to_a_snapshot(self, connection: SqlConnection) -> bool:
        """Say whether a transaction of the caller's passes over rows as others changed them since it began to read."""
        ...

    def lock_wait(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[object]:
        """Let the statements of a transaction wait so many seconds at most for a lock, to a second."""
        ...

    def largest_value(self, connection: sa.Connection) -> int:
        """Say how many bytes one value of a statement may have."""
        ...

    def size_in_statement(self, value: str | bytes) -> int:
        """Say how many of the bytes of `largest_value` a value takes."""
        ...

    def lock_migrations(self, connection: sa.Connection) -> None:
        """Let one process at a time migrate the catalogue, until the transaction ends or `unlock_migrations`."""
        ...

    def unlock_migrations(self, connection: sa.Connection) -> None:
        """Let the next process migrate, where the lock would outlive the transaction."""
        ...
