"""Waits until an SQLite database changes: watches its data version, with the help of inotify on Linux.

The data version changes with every commit of another connection. Reading it takes only microseconds, but to react fast,
a consumer that waits for hours would read it five hundred times a second. A commit appends to the write-ahead log, and
inotify reports this a moment before the commit is visible. So a consumer then reads the version several times in quick
succession. Without inotify (another system, a network folder, a database in memory) the version is read at intervals.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.forking import prepare_for_forks
from waterclock.tables.databases.changes import Stop

if TYPE_CHECKING:
    from inotify_simple import INotify

GLANCE_EVERY = 0.002  # s
GLANCE_EVERY_WITH_INOTIFY = 1.0  # s; inotify misses writes into some shared folders of virtual machines
_GLANCE_SHORTLY = 0.0002  # s
_SHOWS_WITHIN = 0.02  # s from the write to the visible commit; a sync takes up to ten milliseconds


class SqliteChanges:
    """Reads SQLite's data version when its log was written."""

    tells = True

    def __init__(self, backend: Backend) -> None:
        # The driver's own connection: SQLAlchemy would begin a transaction, which sees no changes. Not from the pool: a
        # subscription keeps it for its lifetime.
        self._backend = backend
        self._connection: Any = None
        self._opened = 0
        self._looking = threading.RLock()
        self._is_looking = False  # whether a query runs, whose thread a signal handler may have interrupted
        self._log = LogWatch.of(backend.url.database)
        prepare_for_forks(self)  # first, since a child that is forked while this connects would wait forever
        self._seen = self._version()
        self.row_unchanged_since = moments.monotonic()  # a new version counts as a change of the row

    def arm(self) -> bool:
        """Remember the current version: the following check sees earlier commits."""
        self._changed()
        return True

    def wait(self, seconds: float, stop: Stop) -> bool:
        until = moments.monotonic() + seconds
        while not self._changed():
            if (left := until - moments.monotonic()) <= 0:
                return False
            if self._log is None:
                if stop.wait(min(GLANCE_EVERY, left)):
                    return True
                continue
            ready = stop.wait_for(min(GLANCE_EVERY_WITH_INOTIFY, left), self._log.descriptor)
            if ready - {self._log.descriptor}:
                return True
            if ready and self._log.written():
                self._look_shortly(min(until, moments.monotonic() + _SHOWS_WITHIN), stop)
        return True

    def ring(self, alarm: Stop) -> None:
        """Do nothing: a commit to any table ends the wait for each."""

    def disarm(self) -> None:
        """Do nothing: no writer notifies."""

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        with self._looking:
            if not self._is_looking:  # otherwise the connection is closed when it is collected
                self._close()

    def before_fork(self) -> None:
        """Close the connection, and keep the polling thread from reopening it until the fork is over."""
        self._looking.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Reopen the connection at the next read."""
        if in_child:
            self._looking = threading.RLock()
        else:
            self._looking.release()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look_shortly(self, until: float, stop: Stop) -> None:
        while self._version() == self._seen and moments.monotonic() < until and not stop.is_set():
            moments.sleep(_GLANCE_SHORTLY)

    def _changed(self) -> bool:
        before, self._seen = self._seen, self._version()
        if self._seen != before:
            self.row_unchanged_since = moments.monotonic()
        return self._seen != before

    def _version(self) -> tuple[int, int]:
        """Read the version; versions are comparable on one connection only, so its number goes with it."""
        with self._looking:
            if self._connection is None:
                self._connection = self._backend.driver_connection("watch")
                self._opened += 1
            self._is_looking = True
            try:
                ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
            except sqlite3.Error:
                with self._backend.translated("watch"):
                    raise
            finally:
                self._is_looking = False
            return self._opened, version


class LogWatch:
    """An inotify watch on the folder of a database, because the log in it comes and goes."""

    def __init__(self, folder: INotify, log: str) -> None:
        self.descriptor = folder.fileno()  # readable when a file in the folder was written
        self._folder = folder
        self._log = log

    @classmethod
    def of(cls, database: str | None) -> LogWatch | None:
        """Watch the log of a database file; return None without inotify."""
        if not database or not Path(database).is_file():
            return None
        try:
            # Exists only on systems with inotify, and is needed only by waiting consumers.
            from inotify_simple import INotify, flags  # noqa: PLC0415  # as above
        except ImportError:
            return None
        path = Path(database).resolve()
        folder = None
        try:
            folder = INotify(nonblocking=True)
            folder.add_watch(path.parent, flags.MODIFY)
        except (AttributeError, OSError):  # a C library without it, or the user's limit of watches is reached
            if folder is not None:
                folder.close()
            return None
        return cls(folder, f"{path.name}-wal")

    def written(self) -> bool:
        """Return whether the log was written since the last call."""
        # An event without a name means that others were lost.
        return any(event.name in (self._log, "") for event in self._folder.read(timeout=0))

    def close(self) -> None:
        self._folder.close()
