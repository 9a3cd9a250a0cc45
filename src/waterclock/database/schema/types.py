"""Column types with the same meaning on every database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

BigInt = sa.BigInteger  # times in ns, counts and sizes
BIGINTS = range(-(2**63), 2**63)  # the range of its ints

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A key that the database generates: SQLite numbers only an INTEGER PRIMARY KEY."""

_NO_PAD = "utf8mb4_nopad_bin"  # with the older utf8mb4_bin, "a" and "a " are equal: the shorter text is padded


class _Varchar(mysql.VARCHAR):
    """Compared byte by byte."""


class _LongText(mysql.LONGTEXT):
    """Compared byte by byte."""


@compiles(_Varchar, "mysql", "mariadb")
@compiles(_LongText, "mysql", "mariadb")
def _with_collation(bytewise: _Varchar | _LongText, _compiler: Any, **_: Any) -> str:
    size = f"({bytewise.length})" if bytewise.length else ""
    return f"{bytewise.__visit_name__}{size} CHARACTER SET utf8mb4 COLLATE {_NO_PAD}"


Name = sa.String(255).with_variant(_Varchar(255), "mysql", "mariadb")
"""A name, compared byte by byte, even if the database would ignore case or trailing spaces."""

Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
"""Bytes of up to 1 GB; MariaDB's plain BLOB ends at 64 KiB."""

LongText = sa.Text().with_variant(_LongText(), "mysql", "mariadb")
"""Text of any length, compared byte by byte; MariaDB's plain TEXT ends at 64 KiB."""


class Json(sa.TypeDecorator[Any]):
    """JSON stored unchanged, with its numbers, and its keys in order.

    It is JSON on PostgreSQL, where JSONB changes some values. It is TEXT on SQLite, where a column declared JSON
    converts numeric text to a number, and -0.0 to an int.
    """

    impl = sa.JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.JSON())

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        return sa.JSON().dialect_impl(dialect).bind_processor(dialect)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Parse JSON, if the driver does not."""
        return sa.JSON().dialect_impl(dialect).result_processor(dialect, coltype)


def required(name: str, kind: Any, default: str | None = None, *, doc: str) -> sa.Column[Any]:
    """Build a column that is never NULL; ``default`` is the server's, as SQL."""
    return sa.Column(name, kind, nullable=False, server_default=default, doc=doc)


def key_part(name: str, kind: Any, *, doc: str) -> sa.Column[Any]:
    """Build a column of the primary key, whose values the database does not generate."""
    return sa.Column(name, kind, primary_key=True, autoincrement=False, doc=doc)
