"""A message table's entry in the catalogue: reading it, changing it, and noticing that others changed it."""

from __future__ import annotations

import threading
import time
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import groups, message_tables
from waterclock.errors import NotFoundError
from waterclock.tables.context import TableContext, table_dialect
from waterclock.tables.options import TableOptions
from waterclock.tables.schema import reflect_rows

LOOK_EVERY = 1.0
"""Seconds after which a table that is open notices that its options changed, or that it was paused or dropped."""


def load(backend: Backend, name: str) -> TableContext:
    """Read a message table's entry and its columns.

    Raises
    ------
    NotFoundError
        Where there is none of this name.
    SchemaError
        Where its SQL table is gone or lacks a column, or its options are incomplete.
    """
    with backend.snapshot() as connection:
        entry = connection.execute(sa.select(message_tables).where(message_tables.c.name == name)).first()
        if entry is None:
            raise NotFoundError(f"there is no message table {name!r} in {backend.url.render_as_string()}; create it")
        options = TableOptions.from_json(name, entry.options)
        rows = reflect_rows(connection, name, options)
    return TableContext(
        backend, entry.table_id, name, options, rows, table_dialect(backend), entry.revision, entry.paused_until
    )


def change(connection: sa.Connection, table_id: int, **values: Any) -> None:
    """Change the entry, so that everybody who has the table open notices."""
    connection.execute(
        sa.update(message_tables)
        .where(message_tables.c.table_id == table_id)
        .values(revision=message_tables.c.revision + 1, **values)
    )


def drop(context: TableContext, connection: sa.Connection) -> None:
    """Remove a message table with all that belongs to it."""
    connection.execute(sa.delete(message_tables).where(message_tables.c.table_id == context.table_id))
    connection.execute(sa.delete(groups).where(groups.c.table_id == context.table_id))
    context.sql.drop(connection, context.rows)


class Entry:
    """The entry of a table that is open, looked at again once a second. Safe to share between threads."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._looked_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def last_seen(self) -> TableContext:
        """The table as it was when it was looked at last."""
        return self._context

    def now(self) -> TableContext:
        """Give the table as it is now, to within a second.

        Raises
        ------
        NotFoundError
            Where the message table was dropped.
        SchemaError
            Where its SQL table was dropped or lost a column.
        """
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_EVERY:
                self._look()
            return self._context

    def read(self) -> TableContext:
        """Give the table as it is now, its columns included."""
        with self._lock:
            self._context = load(self._context.backend, self._context.name)
            return self._context

    def _look(self) -> None:
        known = self._context
        statement = sa.select(message_tables.c.table_id, message_tables.c.revision)
        with known.backend.snapshot() as connection:
            found = connection.execute(statement.where(message_tables.c.name == known.name)).first()
        if found is None or tuple(found) != (known.table_id, known.revision):
            self._context = load(known.backend, known.name)
        self._looked_at = time.monotonic()
