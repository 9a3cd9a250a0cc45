"""Loads and changes a message table's row in the catalogue, and notices changes by other processes."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import unknown_name
from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.database.schema.table_catalogue import (
    consumers,
    groups,
    heartbeats,
    message_keys,
    message_tables,
    schedules,
    unique_keys,
)
from waterclock.database.schema.upkeep_catalogue import forget_upkeep
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import NotFoundError, RefusedError
from waterclock.tables.catalogue.context import TableContext, table_dialect
from waterclock.tables.catalogue.totals import drop_totals
from waterclock.tables.model.claims.claim import Reached
from waterclock.tables.model.options import TableOptions
from waterclock.tables.model.schema import ACKED_DAY, LEASED_SINCE, OF_PLAIN_TABLES, UNROUTED_SINCE, reflect_rows

LOOK_EVERY = 1.0  # seconds after which an open table notices that its options changed, or that it was paused or dropped
_READ_EVERY = 10.0  # the same while every change of the table's row is reported: plain SQL may have added a column

_WATCH_FOR = 2.5
"""Seconds after which a consumer that waits for others shows that it still does, less than `idling.LEADS_FOR`."""

ASK_AGAIN = 60.0
"""Seconds after which an operation that the database forbade is retried, in case the privilege was granted."""

_FACTS = sa.select(message_tables.c.table_id, message_tables.c.revision).where(
    message_tables.c.name == sa.bindparam("name", type_=sa.String)
)


def load(backend: Backend, name: str) -> TableContext:
    """Read a message table's row and its columns.

    Raises `NotFoundError` if missing. Raises `SchemaError` if its SQL table is missing or lacks a column, or its
    options are incomplete.
    """
    with backend.snapshot() as connection:
        found = find(backend, connection, name)
        if found is None:
            known = connection.execute(sa.select(message_tables.c.name)).scalars().all()
            raise NotFoundError(unknown_name("message table", name, known, "create it first"))
        dead_letter = found.options.dead_letter
        # If plain SQL dropped it, only messages that must move into it are affected.
        has_dead = dead_letter is not None and sa.inspect(connection).has_table(dead_letter)
        dead = find(backend, connection, dead_letter) if dead_letter is not None and has_dead else None
    return replace(found, dead=dead)


def find(backend: Backend, connection: sa.Connection, name: str) -> TableContext | None:
    """Load a message table's row and its columns, without its dead-letter table; None if missing."""
    found = sa.select(message_tables, backend.now_sql().label("now")).where(message_tables.c.name == name)
    row = connection.execute(found).first()
    if row is None:
        return None
    options = TableOptions.from_json(name, row.options)
    rows = reflect_rows(connection, name, options)
    return TableContext(
        backend,
        row.table_id,
        name,
        options,
        rows,
        table_dialect(backend),
        row.revision,
        row.paused_until,
        reached=Reached(row.bounds, row.now),
    )


def change(context: TableContext, connection: SqlConnection, **values: Any) -> None:
    """Update the row, so that all processes with the open table notice."""
    connection.execute(
        sa.update(message_tables)
        .where(message_tables.c.table_id == context.table_id)
        .values(revision=message_tables.c.revision + 1, **values)
    )
    context.sql.note_row_changed(connection, context.name)


def drop(context: TableContext, connection: sa.Connection) -> None:
    """Remove a message table and its catalogue rows."""
    forget(connection, context.table_id, context.name)
    context.sql.drop(connection, context.rows)
    context.sql.note_row_changed(connection, context.name)


def forget(connection: sa.Connection, table_id: int, name: str) -> None:
    """Remove a message table's rows from the catalogue."""
    for state in (message_tables, groups, consumers, heartbeats, schedules, unique_keys, message_keys):
        connection.execute(sa.delete(state).where(state.c.table_id == table_id))
    drop_totals(connection, table_id)
    forget_upkeep(connection, "table", name)


@contextmanager
def explaining(context: TableContext) -> Generator[None]:
    """Raise an error about the table if a statement fails because of it.

    Raises `NotFoundError` or `SchemaError` as in `load`.
    """
    try:
        yield
    except RefusedError:
        load(context.backend, context.name)
        raise


class TableRow:
    """The row of an open table, reloaded once a second. Thread-safe."""

    def __init__(self, context: TableContext) -> None:
        self.last_seen = context  # the table as of the last load
        self._looked_at = moments.monotonic()
        self._read_at = -math.inf
        self._lock = threading.RLock()  # held during a query, in which a signal handler may use the table

    @property
    def fresh_for(self) -> float:
        """Return for how many seconds the cached row is valid."""
        return max(0.0, self._looked_at + LOOK_EVERY - moments.monotonic())

    def known_for(self, unchanged_since: float) -> float:
        """Return for how many seconds the row stays valid if no change is reported.

        ``unchanged_since`` is as in `Changes.row_unchanged_since`.
        """
        if unchanged_since > self._read_at:
            return self.fresh_for
        return max(self.fresh_for, min(_WATCH_FOR, self._read_at + _READ_EVERY - moments.monotonic()))

    def keep(self, unchanged_since: float) -> None:
        """Note that no change was reported until now: the row needs no reload within the next second."""
        with moments.holding(self._lock):
            if unchanged_since <= self._read_at:
                self._looked_at = max(self._looked_at, min(moments.monotonic(), self._read_at + _READ_EVERY))

    def now(self) -> TableContext:
        """Return the table as it is now, to within a second.

        Raises `NotFoundError` if the message table was dropped. Raises `SchemaError` if its SQL table was dropped or
        lost a column.
        """
        if moments.monotonic() < self._looked_at + LOOK_EVERY:
            return self.last_seen
        with moments.holding(self._lock):
            if moments.monotonic() >= self._looked_at + LOOK_EVERY:
                self._look()
            return self.last_seen

    def __enter__(self) -> TableContext:
        """Return the table as `now` does, for statements that may fail because of the table."""
        return self.now()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RefusedError):
            self.read()  # raises if the table is the reason

    def read(self) -> TableContext:
        """Load the table as it is now, including its columns."""
        with moments.holding(self._lock):
            fresh = load(self.last_seen.backend, self.last_seen.name)
            if not _is_same(self.last_seen, fresh):  # otherwise keep the known context with its cursors
                self.last_seen = fresh
            return self.last_seen

    def check(self, error: RefusedError) -> NoReturn:
        """Raise an error about the table if a statement failed because of it; otherwise raise the error."""
        self.read()
        raise error

    def _look(self) -> None:
        known = self.last_seen
        try:
            seen = _looks.of(known.backend).setdefault(known.name, _SharedRow()).at(known)
        except RefusedError:
            seen = None
        if seen is not None and seen.says(known):
            self._looked_at = self._read_at = seen.looked_at
        else:
            self._read_at = moments.monotonic()
            self.last_seen = load(known.backend, known.name)
            self._looked_at = moments.monotonic()


def _is_same(known: TableContext, fresh: TableContext) -> bool:
    if known.dead is None or fresh.dead is None:
        has_same_dead = known.dead is fresh.dead
    else:
        has_same_dead = _is_same(known.dead, fresh.dead)
    facts = (known.table_id, known.revision, _columns(known)) == (fresh.table_id, fresh.revision, _columns(fresh))
    return facts and has_same_dead


def _columns(context: TableContext) -> dict[str, str]:
    return {column.name: repr(column.type) for column in context.rows.columns}


@dataclass(frozen=True, slots=True)
class _RowSeen:
    """The last loaded version of a table."""

    looked_at: float
    columns: set[str]
    facts: tuple[int, int] | None

    def says(self, known: TableContext) -> bool:
        """Return whether the table is unchanged."""
        is_same = self.columns - {ACKED_DAY, LEASED_SINCE, UNROUTED_SINCE, *OF_PLAIN_TABLES} == set(
            known.rows.columns.keys()
        )
        return is_same and self.facts == (known.table_id, known.revision)


class _SharedRow:
    """The once-a-second reload, shared by all users of an open table in a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held during a query, in which a signal handler may use the table
        self._seen: _RowSeen | None = None

    def at(self, known: TableContext) -> _RowSeen:
        """Reload, unless that was done less than a second ago."""
        with moments.holding(self._lock):
            now = moments.monotonic()
            if self._seen is None or now - self._seen.looked_at >= LOOK_EVERY:
                columns, found = known.backend.look(lambda own: known.sql.columns_and_row(own, known.name, _FACTS))
                self._seen = _RowSeen(now, columns, None if found is None else (found.table_id, found.revision))
            return self._seen


_looks = PerDatabaseCache[dict[str, _SharedRow]](lambda _: {})  # by table name
