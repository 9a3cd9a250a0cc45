"""PostgreSQL: writers notify consumers that wait, and do not notify while none waits.

A NOTIFY takes a lock of the whole database cluster when it commits, so that writers who notify wait for each other.
So they only do where a consumer waits, and find out by two advisory locks for each table:

- *waiting*: a consumer holds it shared while it waits, from one wait to the next, until it has got something;
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

from waterclock.database.backend import Backend
from waterclock.tables.databases.changes import Stop
from waterclock.tables.databases.postgresql.listening_connection import (
    CHANNEL,
    WAITING,
    WRITING,
    ListeningConnection,
    listening_connection,
)

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


class Listening:
    """Waits for PostgreSQL's notifications about one table, on the connection that all who wait here share."""

    tells = True

    def __init__(self, backend: Backend, table: str) -> None:
        self._backend = backend
        self._table = table
        self._connection: ListeningConnection | None = None
        self._armed = False
        self._is_shown = False
        self._patience = _TRY_AGAIN_AFTER
        self.heard = False
        self.alarm = Stop()

    def arm(self) -> bool:
        """Listen, and show that we wait; False where a writer may not have seen it.

        Raises
        ------
        UnavailableError
            Where the server is away.
        """
        self._armed = False
        connection = listening_connection(self._backend)
        if self._connection is not None and self._connection is not connection:
            self.close()
        self._connection = connection
        self._is_shown = True
        with self._backend.translated("listen to"):
            self._armed = connection.arm(self._backend, self._table, self)
        return self._armed

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Wait for a notification; only shortly where writers may not have seen us wait."""
        if not self._armed or self._connection is None:
            ended = stop.wait(min(seconds, self._patience))
            self._patience = min(self._patience * 2, _TRY_AGAIN_AT_THE_LATEST)
            return ended
        self._patience = _TRY_AGAIN_AFTER
        self._armed = False
        return self._connection.wait(self, seconds, stop)

    def ring(self, alarm: Stop) -> None:
        """Have notifications nudge this flag."""
        self.alarm = alarm

    def disarm(self) -> None:
        """Show that we do not wait any more."""
        if self._is_shown and self._connection is not None:
            self._is_shown = self._armed = False
            self._connection.hide(self._table, self)

    def close(self) -> None:
        """Listen no more; the connection stays for the next one, until the database is closed."""
        connection, self._connection = self._connection, None
        self._armed = False
        if connection is not None and connection.process == os.getpid():
            connection.leave(self._backend, self._table, self)
