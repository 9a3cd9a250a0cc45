"""The types of a message table's columns, which read what plain SQL may have stored."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeEngine

from waterclock.database.schema.types import BigInt, Json, LongText, Name
from waterclock.tables.model.options import IdType, Payload
from waterclock.tables.model.values.reading import Guarded, Unreadable


class Bytes(sa.LargeBinary):
    """Bytes, even if a plain-SQL client wrote text into the column, as SQLite allows."""

    as_it_is = bytes

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Encode text; copy buffers."""
        del dialect, coltype  # the same for all
        return _to_bytes


class Text(sa.TypeDecorator[str]):
    """Text, even if a plain-SQL client wrote bytes into the column, as SQLite allows."""

    impl = LongText
    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Decode bytes on SQLite; elsewhere the driver's text is used unchanged."""
        return _to_text if dialect.name == "sqlite" else self.impl_instance.result_processor(dialect, coltype)


class UuidText(sa.TypeDecorator[uuid.UUID]):
    """A UUID as its 36 characters, readable and writable by plain SQL; PostgreSQL has a type for it."""

    impl = sa.CHAR(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID() if dialect.name == "postgresql" else sa.CHAR(36))

    def process_bind_param(self, value: uuid.UUID | None, dialect: sa.Dialect) -> Any:
        """Format in lower case with hyphens."""
        return value if value is None or dialect.name == "postgresql" else str(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        """Parse any spelling of it."""
        del dialect  # the same for all
        if value is None or isinstance(value, uuid.UUID):
            return value
        try:
            return uuid.UUID(value)
        except (ValueError, AttributeError, TypeError) as error:
            return Unreadable(value, error)

    @property
    def python_type(self) -> type[uuid.UUID]:
        return uuid.UUID


def _to_text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return Unreadable(value, error)


def _to_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    # SQLite also stores numbers, and bytes(17) would be seventeen zeros.
    return str(value).encode() if isinstance(value, str | int | float) else bytes(value)


ID_TYPES: dict[IdType, Any] = {"bigint": BigInt, "text": Name, "uuid": UuidText()}
PAYLOADS: dict[Payload, Any] = {
    "bytes": Bytes().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
    "text": Text(),
    "json": Guarded(Json()),
}
COLUMN_TYPES: dict[str, Any] = {
    "bigint": BigInt,
    "double": sa.Double(),
    "boolean": sa.Boolean(),
    "text": LongText,
    "bytes": Bytes().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
    "json": Json(),
}

LOSSY_JSON = (postgresql.JSONB, sqlite.JSON)  # types of columns made by others, which return some JSON changed
