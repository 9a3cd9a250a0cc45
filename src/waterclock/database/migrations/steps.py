"""The steps of migrations, each done once: MariaDB commits every DDL alone, so a crash may leave half of them done."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def create_table(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> None:
    """Create a table unless it is there."""
    op.create_table(name, *parts, if_not_exists=True, **options)


def create_index(name: str, table: str, columns: list[str], where: str | None = None) -> None:
    """Create an index unless it is there; of the rows of ``where`` only, on databases that have such indexes."""
    if not _has_index(name, table):
        some = None if where is None else sa.text(where)
        op.create_index(name, table, columns, postgresql_where=some, sqlite_where=some)


def drop_index(name: str, table: str) -> None:
    """Drop an index if it is there still."""
    if _has_index(name, table):
        op.drop_index(name, table)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column unless it is there."""
    if column.name not in _columns(table):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column if it is there still."""
    if name in _columns(table):
        op.drop_column(table, name)


def rename_table(old: str, new: str) -> None:
    """Rename a table unless that is done."""
    if not sa.inspect(op.get_bind()).has_table(new):
        op.rename_table(old, new)


def rename_column(table: str, old: str, new: str) -> None:
    """Rename a column unless that is done."""
    if new not in _columns(table):
        quote = op.get_bind().dialect.identifier_preparer.quote
        op.execute(f"ALTER TABLE {quote(table)} RENAME COLUMN {quote(old)} TO {quote(new)}")


def _has_index(name: str, table: str) -> bool:
    return any(index["name"] == name for index in sa.inspect(op.get_bind()).get_indexes(table))


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
