"""Keeps message tables open between requests.

Opening a table takes several times as long as a claim, because its columns and options are read.
"""

from __future__ import annotations

import threading

from waterclock.connection import Database
from waterclock.errors import NotFoundError, SchemaError
from waterclock.tables.message_table import MessageTable

MOST = 200
"""Maximum tables kept open. Each holds a few hundred kilobytes of prepared statements."""


class OpenedTables:
    """The tables that requests used last. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._tables: dict[str, MessageTable] = {}

    def table(self, name: str) -> MessageTable:
        """Return a table as it is now, to within a second; NotFoundError if it is missing."""
        with self._lock:
            table = self._tables.pop(name, None)
            if table is not None:
                self._tables[name] = table  # most recently used
        if table is None:
            return self._keep(self._database.table(name))
        try:
            _ = table.options  # checks for changes
        except (NotFoundError, SchemaError):
            self.forget(name)
            raise
        return table

    def _keep(self, table: MessageTable) -> MessageTable:
        with self._lock:
            kept = self._tables.setdefault(table.name, table)
            while len(self._tables) > MOST:
                del self._tables[next(iter(self._tables))]
            return kept

    def forget(self, name: str) -> None:
        """Open a table again when it is used next, because it was dropped or created."""
        with self._lock:
            self._tables.pop(name, None)
