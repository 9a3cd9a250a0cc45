"""SQLite: consumers that wait watch the data version, and on Linux the kernel says when to look.

The data version moves with every commit of another connection. Reading it costs some microseconds, but a consumer that
waits for hours should not read it five hundred times a second. A commit appends to the file's write-ahead log, and
inotify tells of that a moment before the commit shows; so a consumer then looks several times shortly after each other.
Where the kernel cannot tell (another system, a folder of the network, a database in memory) the version is read at
intervals.
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
GLANCE_EVERY_WITH_INOTIFY = 0.1  # s; inotify misses what other machines write
_GLANCE_SHORTLY = 0.0002  # s
_SHOWS_WITHIN = 0.02  # s from the write to the commit that follows it; a sync takes up to ten milliseconds


class SqliteChanges:
    """Looks at SQLite's data version when its log was written to."""

    tells = True

    def __init__(self, backend: Backend) -> None:
        # The driver's own connection, because one of SQLAlchemy's would begin a transaction, which sees no changes;
        # and none of the pool's, because a subscription keeps it for as long as it lives.
        self._backend = backend
        self._connection: Any = None
        self._opened = 0
        self._looking = threading.Lock()
        self._log = LogWatch.of(backend.url.database)
        self._seen = self._version()
        prepare_for_forks(self)

    def arm(self) -> bool:
        """Compare with the version that is seen now: what was committed before, the look that follows sees."""
        self._seen = self._version()
        return True

    def wait(self, seconds: float, stop: Stop) -> bool:
        """Return when another connection has committed."""
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
        """Nothing to do: a commit to any table ends the wait for each."""

    def disarm(self) -> None:
        """Nothing to do: no writer notifies."""

    def close(self) -> None:
        """Give the connection back."""
        if self._log is not None:
            self._log.close()
        with self._looking:
            self._close()

    def before_fork(self) -> None:
        """Close the connection, and keep the thread that looks from opening it again until the fork is over."""
        self._looking.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on with a new one, where there is a next look."""
        if in_child:
            self._looking = threading.Lock()
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
        return self._seen != before

    def _version(self) -> tuple[int, int]:
        """Read the version; only those of one connection can be compared, so its number goes with it."""
        with self._looking:
            if self._connection is None:
                self._connection = self._backend.driver_connection("watch")
                self._opened += 1
            try:
                ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
            except sqlite3.Error:
                with self._backend.translated("watch"):
                    raise
            return self._opened, version


class LogWatch:
    """Linux's inotify on the folder of a database, because the log in it comes and goes.

    Attributes
    ----------
    descriptor
        Can be read when something in the folder was written to.
    """

    def __init__(self, folder: INotify, log: str) -> None:
        self.descriptor = folder.fileno()
        self._folder = folder
        self._log = log

    @classmethod
    def of(cls, database: str | None) -> LogWatch | None:
        """Watch the log of a database file; None where the kernel cannot tell."""
        if not database or not Path(database).is_file():
            return None
        try:
            # It is installed where there is an inotify, and only consumers that wait need it.
            from inotify_simple import INotify, flags  # noqa: PLC0415
        except ImportError:
            return None
        path = Path(database).resolve()
        folder = None
        try:
            folder = INotify(nonblocking=True)
            folder.add_watch(path.parent, flags.MODIFY)
        except (AttributeError, OSError):  # a C library without it; or the user has so many of them
            if folder is not None:
                folder.close()
            return None
        return cls(folder, f"{path.name}-wal")

    def written(self) -> bool:
        """Say whether the log was written to since the last look, and forget that it was."""
        # An event without a name says that others were lost.
        return any(event.name in (self._log, "") for event in self._folder.read(timeout=0))

    def close(self) -> None:
        """Watch no more."""
        self._folder.close()
