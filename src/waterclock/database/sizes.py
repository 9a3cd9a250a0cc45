"""Reads the sizes of a database, its tables and its indexes, and how many dead rows they contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend

MOST_TABLES = 50  # maximum tables whose sizes are read: a server opens each of them


@dataclass(frozen=True, slots=True)
class TableSizes:
    """The space that a table takes."""

    name: str
    rows: int  # estimated
    dead_rows: int | None  # old versions of rows that are not removed yet; None: the database does not count them
    size: int  # bytes of the rows
    index_size: int  # bytes of all indexes
    cleaned_at: int | None  # when the server last removed its dead rows, ns; None: never, or not recorded


@dataclass(frozen=True, slots=True)
class DatabaseSizes:
    """The space that a database takes."""

    size: int  # bytes of all its tables and indexes
    free: int | None  # bytes of these that are free for new rows; None: not known
    log_size: int | None
    """Bytes of the write-ahead log, which grows while a reader holds an old snapshot; None: it does not."""
    unpurged: int | None
    """Transactions whose old versions of rows the server keeps; None: it counts them for each table."""
    tables: tuple[TableSizes, ...] | None
    """The largest tables, largest first; None: their sizes are not known without reading them."""


def read_sizes(backend: Backend) -> DatabaseSizes:
    """Read the size of a database, and the sizes of the catalogue's tables and of message tables.

    Raises `UnavailableError` if the database does not answer, for example because another transaction locks a table.
    Raises `ForbiddenError` if the server does not show sizes to this user.
    """
    dialect = backend.dialect
    with backend.snapshot() as connection:
        size, free, unpurged = connection.execute(dialect.stored_size).one()
        tables = None
        if dialect.stored_tables is not None:
            found = [_table(row) for row in connection.execute(dialect.stored_tables, {"most": MOST_TABLES})]
            tables = tuple(sorted(found, key=lambda one: -one.size - one.index_size))
    return DatabaseSizes(int(size), _count(free), dialect.log_size(backend.url), _count(unpurged), tables)


def _table(row: sa.Row[*tuple[Any, ...]]) -> TableSizes:
    name, rows, dead_rows, size, index_size, cleaned_at = row
    return TableSizes(name, int(rows), _count(dead_rows), int(size), int(index_size), _count(cleaned_at))


def _count(value: Any) -> int | None:
    """Convert a number, which servers return as decimals or texts."""
    return None if value is None else int(value)
