"""What message tables need that differs between the databases, as one interface. Each database has one file for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.tables.changes import Changes
from waterclock.tables.options import IdType
from waterclock.tables.schema import IdItem


class TableDialect(Protocol):
    """One database's statements for message tables."""

    one_writer: bool
    """Whether a transaction that writes keeps all others from writing."""

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Give what the id's column needs so that the database generates ids; ``name`` is the table's."""
        ...

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool) -> None:
        """Make the SQL table with its defaults and indexes, so that plain SQL works with nothing of ours installed."""
        ...

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Remove the SQL table with what `create` made beside it."""
        ...

    def reserve_ids(self, connection: sa.Connection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Give ``count`` ids greater than ``above`` that nobody else gets."""
        ...

    def insert_new(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], messages: list[dict[str, Any]]
    ) -> set[Any]:
        """Insert messages whose ids are new, and return those ids; ``values`` are expressions for all."""
        ...

    def add_groups(self) -> sa.Insert:
        """Insert rows of groups that are not there yet."""
        ...

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is one of the values in the list bound as ``name``."""
        ...

    def take(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], seqs: list[int]
    ) -> dict[int, int]:
        """Change the rows of these seqs, and return the time_next that each of them has now."""
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
