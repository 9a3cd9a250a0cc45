"""The connection on which all waiting consumers of one process and one database receive notifications.

The first consumer that waits becomes the leader: its thread also watches the connection. When a notification comes, the
leader wakes the consumers that wait for that table. When the leader leaves, it wakes another consumer, which then
leads. So no extra thread is needed.

While a table's consumer waits, and between its waits, the connection holds the table's lock *waiting* (see `waking`).
The consumer checks that all active writers have seen this lock. Consumers that begin to wait later need not check this
again. So a long wait needs no queries, except for occasional checks that the server still answers.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.deadlines import at_most, lent, returned
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.tables.databases.changes import Stop

WAITING, WRITING = 0x57A70001, 0x57A70002  # the first halves of the lock keys; the second is a hash of the table's name
_PATIENCE = 5.0  # s for an answer that needs no wait
_ASK_EVERY = 10.0  # s after which a silent server is checked

CHANNEL = "waterclock_"
"""Prefix of a table's channel. A notification with a text is about the table's row in the catalogue."""


class Listener(Protocol):
    """A consumer that waits for changes of a table."""

    heard: bool  # whether a notification came since it armed, or the connection broke
    alarm: Stop  # nudged when it must check `heard`, or lead


class _Table:
    """The connection's state for one table."""

    def __init__(self) -> None:
        # When it began to listen, or was last notified of a change of the table's row.
        self.row_changed_at = moments.monotonic()
        # The consumers for which it listens. One that was dropped without being closed does not count.
        self.listening: WeakSet[Listener] = WeakSet()
        self.shown: WeakSet[Listener] = WeakSet()  # consumers that wait, or are about to
        self.is_held = False  # whether the lock *waiting* is held, as it is while one is shown
        self.is_seen = False  # whether every active writer has seen that lock


class ListeningConnection:
    """Listens on one connection for all waiting consumers. Thread-safe; not usable after a fork."""

    def __init__(self) -> None:
        self.process = os.getpid()  # the owning process: a forked process must not use its parent's connection
        self._lock = threading.RLock()
        self._is_asking = False  # whether a query runs, whose thread a signal handler may have interrupted
        self._connection: Any = None
        self._tables: dict[str, _Table] = {}
        self._sleeping: dict[Listener, None] = {}
        self._leader: Listener | None = None
        self._answered_at = 0.0

    def arm(self, backend: Backend, name: str, one: Listener) -> bool:
        """Listen to a table and show that a consumer waits; return False if a writer may not have seen it."""
        with self._lock:
            if self._connection is not None:
                with suppress(backend.engine.dialect.loaded_dbapi.Error):  # broken: open a new one
                    return self._arm_or_drop(backend, name, one)
            return self._arm_or_drop(backend, name, one)

    def _arm_or_drop(self, backend: Backend, name: str, one: Listener) -> bool:
        try:
            return self._try_to_arm(backend, name, one)
        except BaseException:
            self._drop()
            raise

    def _try_to_arm(self, backend: Backend, name: str, one: Listener) -> bool:
        one.heard = False
        if self._connection is None:
            self._connect(backend)
        table = self._tables.get(name)
        if table is None:
            self._run(f"LISTEN {_channel(backend, name)}")
            table = self._tables[name] = _Table()
        table.listening.add(one)
        if not table.is_held:
            if not self._ask("SELECT pg_try_advisory_lock_shared(%s, hashtext(%s))", name, WAITING):
                return False
            table.is_held, table.is_seen = True, False
        table.shown.add(one)
        if table.is_seen and moments.monotonic() - self._answered_at > _ASK_EVERY:
            self._run("SELECT")
        if not table.is_seen:
            table.is_seen = self._ask(
                "SELECT CASE WHEN pg_try_advisory_lock(%s, hashtext(%s))"
                " THEN pg_advisory_unlock(%s, hashtext(%s)) ELSE false END",
                name,
                WRITING,
                WRITING,
            )
        return table.is_seen

    def wait(self, one: Listener, seconds: float, stop: Stop) -> bool:
        """Wait for a notification after `arm`, until ``stop`` is set or so many seconds are over.

        The consumer still counts as waiting: it may wait again without another check, or call `hide`.
        """
        try:
            return self._sleep(one, moments.monotonic() + seconds, stop)
        finally:
            with self._lock:
                self._sleeping.pop(one, None)
                if self._leader is one:
                    self._leader = None
                if self._leader is None and self._sleeping:
                    next(iter(self._sleeping)).alarm.nudge()

    def _sleep(self, one: Listener, until: float, stop: Stop) -> bool:
        while True:
            descriptors = {one.alarm.descriptor}
            with self._lock:
                if one.heard or self._connection is None:
                    return True
                self._sleeping[one] = None
                leads = self._leader is None or self._leader is one
                if leads:
                    self._leader = one
                    descriptors.add(self._connection.fileno())
            left = until - moments.monotonic()
            ready = stop.wait_for(left, *descriptors)
            if one.alarm.descriptor in ready:
                one.alarm.wait(0)  # consumes the nudge, which would come twice otherwise
            if leads and ready:
                self._take_in()
            if ready - descriptors:
                return True
            if left <= 0:
                return one.heard

    def _take_in(self) -> None:
        """Read pending notifications; another query may already have read them."""
        with self._lock:
            if self._connection is None:
                return
            server = self._connection.pgconn
            try:
                server.consume_input()
                while notification := server.notifies():
                    self._tell(notification.relname.decode(), is_row=bool(notification.extra))
            except Exception:  # noqa: BLE001  # the look that follows says whether the server is away
                self._drop()

    def _tell(self, channel: str, *, is_row: bool) -> None:
        table = self._tables.get(channel.removeprefix(CHANNEL))
        if table is None:
            return
        if is_row:
            table.row_changed_at = moments.monotonic()
        for one in tuple(table.shown):
            one.heard = True
            one.alarm.nudge()

    def row_unchanged_since(self, name: str) -> float:
        """Return when it began to listen to a table, or was last notified of a change of its row."""
        with self._lock:
            table = self._tables.get(name)
            return math.inf if table is None else table.row_changed_at

    def hide(self, name: str, one: Listener) -> None:
        """Turn off notifications for a consumer that is busy now."""
        with self._lock:
            self._hide(name, one)

    def _hide(self, name: str, one: Listener) -> None:
        table = self._tables.get(name)
        if table is None:
            return
        table.shown.discard(one)
        if table.is_held and not table.shown:
            table.is_held = table.is_seen = False
            try:
                self._ask("SELECT pg_advisory_unlock_shared(%s, hashtext(%s))", name, WAITING)
            except Exception:  # noqa: BLE001  # as in `_take_in`
                self._drop()

    def leave(self, backend: Backend, name: str, one: Listener) -> None:
        """Stop listening for a consumer that is closed; the connection stays open for others."""
        with self._lock:
            if self._is_asking:  # by this thread, which a signal handler interrupted; `one` leaves when it is collected
                return
            self._hide(name, one)
            table = self._tables.get(name)
            if table is None:
                return
            table.listening.discard(one)
            if not table.listening:
                del self._tables[name]
                try:
                    self._run(f"UNLISTEN {_channel(backend, name)}")
                except Exception:  # noqa: BLE001  # as in `_take_in`
                    self._drop()

    def close(self) -> None:
        """Close the connection. Waiting consumers check again, on a new one."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        tables, self._tables = self._tables, {}
        for table in tables.values():
            for one in tuple(table.listening):
                one.heard = True
                one.alarm.nudge()
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _connect(self, backend: Backend) -> None:
        connection: Any = backend.driver_connection("listen to")
        self._connection = connection
        connection.autocommit = True
        # The answer to a query brings notifications with it.
        connection.add_notify_handler(lambda one: self._tell(one.channel, is_row=bool(one.payload)))

    def _ask(self, question: str, name: str, *locks: int) -> Any:
        values = [value for lock in locks for value in (lock, name)]
        return self._run(question, values).fetchone()[0]

    def _run(self, statement: str, values: Sequence[Any] | None = None) -> Any:
        self._is_asking = True
        try:
            with at_most(_PATIENCE):
                lent(self._connection, _PATIENCE)
                try:
                    answer = self._connection.execute(statement, values)
                finally:
                    returned(self._connection)
        finally:
            self._is_asking = False
        self._answered_at = moments.monotonic()
        return answer


def _channel(backend: Backend, name: str) -> str:
    return backend.engine.dialect.identifier_preparer.quote_identifier(CHANNEL + name)


_connections = PerDatabaseCache[ListeningConnection](lambda _: ListeningConnection())


def listening_connection(backend: Backend) -> ListeningConnection:
    """Return the database's connection in this process, kept open until the database is closed."""
    backend.when_closed(_close)
    return _connections.of(backend)


def _close(backend: Backend) -> None:
    connection = _connections.forget(backend)
    if connection is not None:
        connection.close()
