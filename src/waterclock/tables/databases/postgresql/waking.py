"""PostgreSQL: writers notify consumers that wait, and do not notify while none waits.

A NOTIFY takes a lock of the whole database cluster when it commits, so that writers who notify wait for each other.
So they only do where a consumer waits, and find out by two advisory locks for each table:

- *waiting*: a consumer holds it shared while it waits;
- *writing*: a transaction that wrote to the table without notifying holds it shared until it ends.

A writer's trigger takes *writing*, and then looks whether it could have *waiting* for itself (and lets go of it at
once). If it gets both, no consumer waits, and it does not notify. If it gets either not, it notifies.

A consumer first LISTENs. Then it takes *waiting*, then looks whether it could have *writing* for itself (and lets
go of it at once), and if so looks once more for messages, and sleeps. If it does not get either, it does not sleep
but tries again after some milliseconds. Nothing is missed:

- A writer that looks at *waiting* after the consumer took it notifies. The consumer listens already, so it is woken
  when the writer commits.
- A writer that looked at *waiting* before the consumer took it had *writing* before that, and keeps it until it has
  ended. The consumer gets *writing* only then; and what is committed shows before its locks are let go. So the
  consumer's look, which comes after, sees it.
- Writers hold *writing* shared, and consumers *waiting* shared: they do not disturb their like. Two that test the
  same lock at the same moment may both fail; then a writer notifies once too often, and a consumer tries again.
- A savepoint that is rolled back lets go of *writing*, and its rows are gone as well.
- Notifications of one transaction with the same text are one.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from waterclock.database.backend import Backend
from waterclock.tables.databases.changes import Stop

WAITING, WRITING = 0x57A70001, 0x57A70002
"""The first halves of the locks' keys; the second is a hash of the table's name."""

CHANNEL = "waterclock_"
"""What the name of a table's channel begins with."""

_FORGET = "UNLISTEN *; SELECT pg_advisory_unlock_all()"
_TRY_AGAIN_AFTER = 0.003  # s
_TRY_AGAIN_AT_THE_LATEST = 0.05  # s

TRIGGERS = (
    f"""
    CREATE FUNCTION %(wake)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NOT (CASE
            WHEN NOT pg_try_advisory_xact_lock_shared({WRITING}, hashtext(TG_ARGV[0])) THEN false
            WHEN pg_try_advisory_lock({WAITING}, hashtext(TG_ARGV[0]))
            THEN pg_advisory_unlock({WAITING}, hashtext(TG_ARGV[0]))
            ELSE false
        END) THEN
            PERFORM pg_notify('{CHANNEL}' || TG_ARGV[0], '');
        END IF;
        RETURN NULL;
    END $$""",
    """
    CREATE TRIGGER %(wake)s AFTER INSERT ON %(table)s FOR EACH STATEMENT EXECUTE FUNCTION %(wake)s(%(name)s)""",
    # For each row, because only so it can tell what is due earlier now from a claim, which is the most frequent change.
    """
    CREATE TRIGGER %(wake_earlier)s AFTER UPDATE OF time_next ON %(table)s
    FOR EACH ROW WHEN (NEW.time_next < OLD.time_next OR (OLD.time_next IS NULL AND NEW.time_next IS NOT NULL))
    EXECUTE FUNCTION %(wake)s(%(name)s)""",
)


class _Spare:
    """Keeps one connection of each database that listens to nothing just now, so that not every wait opens one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: WeakKeyDictionary[Backend, tuple[int, Any]] = WeakKeyDictionary()

    def take(self, backend: Backend) -> Any:
        """Give the one that is kept; None where there is none."""
        with self._lock:
            process, connection = self._of.pop(backend, (0, None))
        # A process that was forked has its parent's, and must not talk into it.
        return connection if process == os.getpid() else None

    def keep(self, backend: Backend, connection: Any) -> bool:
        """Keep a connection until the database is closed; False where one is kept already."""
        with self._lock:
            process, _ = self._of.get(backend, (0, None))
            if process == os.getpid():
                return False
            self._of[backend] = (os.getpid(), connection)
        backend.when_closed(self.close)
        return True

    def close(self, backend: Backend) -> None:
        """Give back the one that is kept."""
        connection = self.take(backend)
        if connection is not None:
            connection.close()


_spare = _Spare()


class Listening:
    """Waits for PostgreSQL's notifications about one table, on a connection of its own; a new one where it broke.

    One that is closed leaves its connection to the next one on the same database.
    """

    def __init__(self, backend: Backend, table: str) -> None:
        self._backend = backend
        self._table = table
        self._connection: Any = None
        self._shown = False
        self._heard = False
        self._armed = False
        self._patience = _TRY_AGAIN_AFTER

    def arm(self) -> bool:
        """Listen, and show that we wait; False where a writer may not have seen it.

        Raises
        ------
        UnavailableError
            Where the server is away.
        """
        try:
            with self._backend.translated("listen to"):
                self._armed = self._try_to_arm()
        except BaseException:
            self._drop()
            raise
        return self._armed

    def _try_to_arm(self) -> bool:
        if self._connection is None:
            self._connect()
        self._heard = False
        if not self._shown:
            self._shown = self._ask("SELECT pg_try_advisory_lock_shared(%s, hashtext(%s))", WAITING)
        return self._shown and self._ask(
            "SELECT CASE WHEN pg_try_advisory_lock(%s, hashtext(%s))"
            " THEN pg_advisory_unlock(%s, hashtext(%s)) ELSE false END",
            WRITING,
            WRITING,
        )

    def wait(self, seconds: float, stop: Stop) -> None:
        """Wait for a notification; only shortly where writers may not have seen us wait."""
        if not self._armed:
            stop.wait(min(seconds, self._patience))
            self._patience = min(self._patience * 2, _TRY_AGAIN_AT_THE_LATEST)
            return
        self._patience = _TRY_AGAIN_AFTER
        self._armed = False
        try:
            if not self._heard:
                stop.wait(seconds, self._connection.fileno())
            # While this consumer is busy, writers need not notify it. The answer brings the notifications with it.
            self._ask("SELECT pg_advisory_unlock_shared(%s, hashtext(%s))", WAITING)
            self._shown = False
        except self._error:
            self._drop()  # the look that follows says whether the server is away

    def close(self) -> None:
        """Leave the connection to the next one, or give it back where one is kept already."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.execute(_FORGET)
            connection.remove_notify_handler(self._hear)
            is_kept = _spare.keep(self._backend, connection)
        except self._error:
            is_kept = False
        if is_kept:
            self._connection = None
            self._shown = self._armed = False
        else:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._shown = self._armed = False
        if connection is not None:
            with suppress(self._error):
                connection.close()

    @property
    def _error(self) -> type[Exception]:
        return self._backend.engine.dialect.loaded_dbapi.Error

    def _connect(self) -> None:
        spare = _spare.take(self._backend)
        if spare is not None:
            try:
                self._listen(spare)
            except self._error:  # it broke while it was kept
                self._drop()
            else:
                return
        self._listen(self._backend.driver_connection("listen to"))

    def _listen(self, connection: Any) -> None:
        self._connection = connection  # a subscription keeps it for as long as it lives
        connection.autocommit = True
        connection.add_notify_handler(self._hear)
        quote = self._backend.engine.dialect.identifier_preparer.quote_identifier
        connection.execute(f"LISTEN {quote(CHANNEL + self._table)}")

    def _hear(self, _notification: Any) -> None:
        self._heard = True

    def _ask(self, question: str, *locks: int) -> Any:
        values = [value for lock in locks for value in (lock, self._table)]
        return self._connection.execute(question, values).fetchone()[0]
