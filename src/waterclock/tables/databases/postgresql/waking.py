"""Notifications on PostgreSQL: a writer notifies waiting consumers, but only if a consumer waits.

A NOTIFY takes a cluster-wide lock at commit, so notifying writers wait for each other. Two advisory locks for each
table show whether a consumer waits:

- *waiting*: a consumer holds it shared from its first wait until it gets a message, also between waits;
- *writing*: a transaction that wrote to the table without notifying holds it shared until it ends.

A writer's trigger takes *writing*, then tries to take *waiting* exclusively, and releases *waiting* at once. If it gets
both, no consumer waits, and it does not notify. Otherwise it notifies.

A consumer first LISTENs. Then it takes *waiting*, tries to take *writing* exclusively, and releases *writing* at once.
If it gets both, it checks once more for messages, and sleeps. Otherwise it tries again after some milliseconds.

No message is missed, and no process is blocked:

- A writer notifies if it tries *waiting* after the consumer took it. The consumer already listens, so it is woken when
  the writer commits.
- If a writer tried *waiting* before the consumer took it, the writer already held *writing*, and keeps it until its
  transaction ends. The consumer gets *writing* only then. A commit is visible before its locks are released, so the
  consumer's check, which comes later, sees the messages.
- Writers hold *writing* shared, and consumers hold *waiting* shared. So neither writers nor consumers block each other.
  Two processes that try the same lock at the same moment may both fail. Then a writer notifies once too often, or a
  consumer tries again.
- A savepoint that is rolled back releases *writing*, and its rows are gone as well.
- PostgreSQL merges notifications of one transaction that have the same text.
"""

from __future__ import annotations

import math
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
    # For each row: only a row trigger can distinguish earlier due times from claims, which are the most frequent
    # change.
    """
    CREATE TRIGGER %(wake_earlier)s AFTER UPDATE OF time_next ON %(table)s
    FOR EACH ROW WHEN (NEW.time_next < OLD.time_next OR (OLD.time_next IS NULL AND NEW.time_next IS NOT NULL))
    EXECUTE FUNCTION %(wake)s(%(name)s)""",
)


class Listening:
    """Waits for PostgreSQL's notifications about one table, on the process's shared connection."""

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

    @property
    def row_unchanged_since(self) -> float:
        """Return when it began to listen, or was last notified of a change of the row."""
        return math.inf if self._connection is None else self._connection.row_unchanged_since(self._table)

    def arm(self) -> bool:
        """Listen, and show that this consumer waits; return False if a writer may not have seen it.

        Raises `UnavailableError` if the server is unavailable.
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
        """Wait for a notification; only briefly if writers may not have seen that this consumer waits."""
        if not self._armed or self._connection is None:
            ended = stop.wait(min(seconds, self._patience))
            self._patience = min(self._patience * 2, _TRY_AGAIN_AT_THE_LATEST)
            return ended
        self._patience = _TRY_AGAIN_AFTER
        self._armed = False
        return self._connection.wait(self, seconds, stop)

    def ring(self, alarm: Stop) -> None:
        """Nudge this flag on notifications."""
        self.alarm = alarm

    def disarm(self) -> None:
        """Show that this consumer no longer waits."""
        if self._is_shown and self._connection is not None:
            self._is_shown = self._armed = False
            self._connection.hide(self._table, self)

    def close(self) -> None:
        """Stop listening; the connection stays open for others until the database is closed."""
        connection, self._connection = self._connection, None
        self._armed = False
        if connection is not None and connection.process == os.getpid():
            connection.leave(self._backend, self._table, self)
