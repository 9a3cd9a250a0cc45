"""Types of the user's columns for which SQLAlchemy has no class, or one that cannot read their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.types import NullType, TypeEngine

_NAMES = {
    "postgresql": sa.text(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS kind FROM pg_attribute"
        " WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped"
    ),
    "mysql": sa.text(
        "SELECT column_name AS name, column_type AS kind FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name = :table"
    ),
}
"""The statements that return the names of a table's column types, by database; on SQLite, a column may have no type."""


class NamedType(sa.types.UserDefinedType[Any]):
    """A type that only the database knows, by its name there; the driver writes and reads its values."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_options: Any) -> str:
        return self.name


class DomainArray(sa.TypeDecorator[Any]):
    """An array of a domain, which psycopg returns as text."""

    impl = postgresql.ARRAY
    cache_ok = True

    def __init__(self, item_type: postgresql.DOMAIN) -> None:
        super().__init__(item_type)
        self.item_type = item_type

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Read the text as psycopg reads an array of the domain's type."""
        process: Any = super().result_processor(dialect, coltype)
        load = _array_loader(self.item_type, dialect)
        return lambda value: process(load(value) if isinstance(value, str) else value)


def _array_loader(kind: Any, dialect: sa.Dialect) -> Callable[[str], Any]:
    from psycopg import adapt, postgres, pq  # noqa: PLC0415  # the driver need not be there for other databases

    while isinstance(kind, postgresql.DOMAIN):
        kind = kind.data_type
    known = postgres.types.get(re.sub(r"\(.*?\)", "", kind.compile(dialect)).lower()) or postgres.types["text"]
    loader = adapt.Transformer().get_loader(known.array_oid, pq.Format.TEXT)
    return lambda value: loader.load(value.encode())


def reflected_columns(connection: sa.Connection, table: str) -> Sequence[ReflectedColumn]:
    """Return the columns of a table, as SQLAlchemy's inspector does, with types that have a name in SQL.

    Raises `NoSuchTableError` if it does not exist.
    """
    columns = sa.inspect(connection).get_columns(table)
    if connection.dialect.name in ("mysql", "mariadb"):
        for column in columns:
            column["name"] = column["name"].replace("``", "`")  # as SHOW CREATE TABLE escapes it
    if any(_is_unknown(column["type"]) for column in columns):
        dialect = connection.dialect
        statement = _NAMES.get("mysql" if dialect.name == "mariadb" else dialect.name)
        quoted = dialect.identifier_preparer.quote(table) if dialect.name == "postgresql" else table
        names: dict[str, str] = {}
        if statement is not None:
            names = {row.name: row.kind for row in connection.execute(statement, {"table": quoted})}
        for column in columns:
            if _is_unknown(column["type"]):
                column["type"] = NamedType(names.get(column["name"], ""))
    for column in columns:
        kind = column["type"]
        if isinstance(kind, sa.ARRAY) and isinstance(kind.item_type, postgresql.DOMAIN):
            column["type"] = DomainArray(kind.item_type)
    return columns


def _is_unknown(kind: TypeEngine[Any]) -> bool:
    return isinstance(kind.item_type if isinstance(kind, sa.ARRAY) else kind, NullType)
