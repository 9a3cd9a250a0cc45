"""One database of a sharded keyspace. It is opened on demand. After a failure, it is not tried again for a while."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.keyspace import KeyRange

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.2  # seconds for which an unavailable shard is left alone; doubled each time
LONGEST_PAUSE = 30.0  # maximum seconds for which an unavailable shard is left alone


class Opened(Protocol):
    """The part of an open database that shards need."""

    backend: Backend

    @property
    def create_table(self) -> Callable[..., MessageTable]:
        """Create a message table."""
        ...

    def table(self, name: str) -> MessageTable:
        """Open a message table."""
        ...

    def tables(self) -> list[str]:
        """Return the names of all message tables."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class Shard:
    """A database that holds one key range. Thread-safe.

    Attributes
    ----------
    key_range
        The keyspace ids that it holds.
    url
        URL of the database.
    name
        The key range as text, which is also the shard's name.
    reason
        Why it is unavailable; None if it is available.
    """

    def __init__(self, key_range: KeyRange, url: str, open_database: Callable[[str], Opened]) -> None:
        self.key_range = key_range
        self.url = url
        self.name = str(key_range)
        self._open_database = open_database
        self._opened: Opened | None = None
        self._lock = threading.Lock()
        self._pause = 0.0
        self._away_until = 0.0
        self.reason: str | None = None

    @property
    def database(self) -> Opened:
        """Return the database; UnavailableError if it cannot be opened now."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open_database(self.url)
            return self._opened

    @property
    def backend(self) -> Backend:
        return self.database.backend

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction of your own on this shard; see `waterclock.connection.Database.begin`."""
        return self.backend.lend()

    @property
    def rest(self) -> float:
        """Return the seconds for which the shard is left alone because it was unavailable."""
        return max(0.0, self._away_until - moments.monotonic())

    def note_away(self, error: UnavailableError) -> None:
        """Leave the shard alone for a while, twice as long each time."""
        if self.reason is None:
            logger.warning("shard %s is unavailable, retrying: %s", self.name, error)
        self.reason = str(error)
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        # Jitter, so that consumers do not all return at once.
        self._away_until = moments.monotonic() + self._pause * random.uniform(0.67, 1)  # noqa: S311  # not a secret

    def note_back(self) -> None:
        if self.reason is not None:
            logger.warning("shard %s is available again", self.name)
        self.reason, self._pause, self._away_until = None, 0.0, 0.0

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __repr__(self) -> str:
        return f"<Shard {self.name}>"
