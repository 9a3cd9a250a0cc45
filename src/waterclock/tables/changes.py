"""Noticing that a database changed, so that a consumer need not wait for its poll interval."""

from __future__ import annotations

import threading
import time
from typing import Protocol

import sqlalchemy as sa

from waterclock.database.backend import Backend

_GLANCE_EVERY = 0.002  # s; a glance costs some microseconds


class Changes(Protocol):
    """Waits for changes of a database."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when something may have changed, when ``stop`` is set, or after ``seconds``."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class SqliteChanges:
    """Looks at SQLite's data version, which moves with every commit of another connection."""

    def __init__(self, backend: Backend) -> None:
        self._connection = backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
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
        return self._connection.execute(sa.text("PRAGMA data_version")).scalar_one()
