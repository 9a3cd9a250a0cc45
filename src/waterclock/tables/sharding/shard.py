"""One database of a sharded keyspace: opened when it is needed, and left alone for a while where it is away."""

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

FIRST_PAUSE = 0.2
"""Seconds for which a shard that was found away is left alone; the pause doubles each time."""

LONGEST_PAUSE = 30.0
"""Seconds for which a shard that is away is left alone at the most."""


class Opened(Protocol):
    """A database that is open, as far as shards need it."""

    backend: Backend

    @property
    def create_table(self) -> Callable[..., MessageTable]:
        """Make a message table of a name, with options."""
        ...

    def table(self, name: str) -> MessageTable:
        """Open a message table."""
        ...

    def tables(self) -> list[str]:
        """Name every message table."""
        ...

    def close(self) -> None:
        """Give the connections back."""
        ...


class Shard:
    """A database that holds one key range. Safe to share between threads.

    Attributes
    ----------
    key_range
        Which keyspace ids it holds.
    url
        Of the database.
    name
        The key range as text, which is also the shard's name.
    reason
        Why it was found away; None where it was not.
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
        """The database; UnavailableError where it cannot be opened now."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open_database(self.url)
            return self._opened

    @property
    def backend(self) -> Backend:
        """Engine, transactions and clock."""
        return self.database.backend

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction of your own on this shard; see `waterclock.connection.Database.begin`."""
        return self.backend.lend()

    @property
    def rest(self) -> float:
        """Seconds for which the shard is to be left alone, because it was found away."""
        return max(0.0, self._away_until - moments.monotonic())

    def note_away(self, error: UnavailableError) -> None:
        """Leave the shard alone for a while, twice as long each time."""
        if self.reason is None:
            logger.warning("shard %s is away and is tried again and again: %s", self.name, error)
        self.reason = str(error)
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        # Jitter, so that many consumers do not come back in one moment.
        self._away_until = moments.monotonic() + self._pause * random.uniform(0.67, 1)  # noqa: S311  # not a secret

    def note_back(self) -> None:
        """Take the shard up again."""
        if self.reason is not None:
            logger.warning("shard %s is back", self.name)
        self.reason, self._pause, self._away_until = None, 0.0, 0.0

    def close(self) -> None:
        """Give the connections back."""
        if self._opened is not None:
            self._opened.close()

    def __repr__(self) -> str:
        return f"<Shard {self.name}>"
