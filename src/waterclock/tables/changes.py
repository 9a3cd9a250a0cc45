"""Noticing that a database changed, so that a consumer need not wait for its poll interval."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from waterclock.database.backend import Backend

_LOOK_AFTER = 0.02  # s
_GLANCE_EVERY = 0.002  # s; a glance costs some microseconds


class Changes(Protocol):
    """Waits for changes of a database."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when something may have changed, when ``stop`` is set, or after ``seconds``."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class Polling:
    """Looks again after a while that grows, for databases that tell nothing."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait."""
        stop.wait(min(seconds, _LOOK_AFTER))

    def close(self) -> None:
        """Nothing to give back."""


class SqliteChanges:
    """Looks at SQLite's data version, which moves with every commit of another connection."""

    def __init__(self, backend: Backend) -> None:
        # The driver's own connection, because one of SQLAlchemy's would begin a transaction, which sees no changes;
        # and none of the pool's, because a subscription keeps it for as long as it lives.
        self._connection = backend.engine.raw_connection()
        self._connection.detach()
        self._seen = self._version()

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when another connection has committed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not stop.wait(min(_GLANCE_EVERY, left)):
            version = self._version()
            if version != self._seen:
                self._seen = version
                return

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def _version(self) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute("PRAGMA data_version")
            (version,) = cursor.fetchall()[0]
            return version
        finally:
            cursor.close()
