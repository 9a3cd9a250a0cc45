"""What message tables need that differs between the databases, as one interface. Each database has one file for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.tables.changes import Changes


class TableDialect(Protocol):
    """One database's statements for message tables."""

    one_writer: bool
    """Whether a transaction that writes keeps all others from writing."""

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: str, *, grouped: bool) -> None:
        """Make the SQL table with its defaults and indexes, so that plain SQL works with nothing of ours installed."""
        ...

    def reserve_ids(self, connection: sa.Connection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Give ``count`` ids greater than ``above`` that nobody else gets."""
        ...

    def insert(self, rows: sa.Table, values: dict[str, Any]) -> sa.Insert:
        """Insert where the id is new, else change nothing."""
        ...

    def add_groups(self) -> sa.Insert:
        """Insert rows of groups that are not there yet."""
        ...

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is one of the values in the list bound as ``name``."""
        ...

    def swing(self) -> sa.ColumnElement[float]:
        """Give a random number from -1 to 1, another one for each row."""
        ...

    def clamp(self, low: int, value: sa.ColumnElement[int], high: int) -> sa.ColumnElement[int]:
        """Bring a value between two bounds."""
        ...

    def changes(self, backend: Backend) -> Changes:
        """Watch the database for changes."""
        ...
