"""Validates values of additional columns, with the same rules for every database.

SQLite stores any value in any column, and MariaDB converts many values. So a value that some server would refuse or
change is refused on every database. An int for a column of type double becomes a float. For columns of other types,
only the database checks values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from waterclock._support.quoting import quoted
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.types import BIGINTS, Json
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.values.json_values import check_json, check_jsonb, check_numeric_json
from waterclock.tables.model.values.texts import check_text

_Check = Callable[[str, Any], Any]


def _json(check: Callable[[str, Any], None]) -> _Check:
    def checked(name: str, value: Any) -> Any:
        check(name, value)
        return value

    return checked


def _if_text(name: str, value: Any) -> Any:
    return check_text(name, value) if isinstance(value, str) else value


def _any_int(name: str, value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise _misfit(name, value, "an int")


def _int(name: str, value: Any) -> int:
    number = _any_int(name, value)
    if number not in BIGINTS:
        raise _misfit(name, value, "an int of at most 64 bits")
    return number


def _float(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes | bytearray | bool) and math.isfinite(number := float(value)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise _misfit(name, value, "a finite float")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _misfit(name, value, "a string")
    return check_text(name, value)


def _bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _misfit(name, value, "bytes")
    return bytes(value)


def _misfit(name: str, value: object, takes: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be {takes}, got {quoted(value)}")


_CHECKS: tuple[tuple[type[Any], _Check], ...] = (
    (postgresql.JSONB, _json(check_jsonb)),
    (sqlite.JSON, _json(check_numeric_json)),
    (sa.JSON, _json(check_json)),
    (Json, _json(check_json)),
    (sa.Enum, _if_text),
    (mysql.TINYINT, _if_text),  # MariaDB's boolean
    (sa.Integer, _int),
    (sa.Float, _float),
    (sa.String, _text),
    (sa.LargeBinary, _bytes),
)
"""Checks by column type, first match; values of other types may be anything except invalid text."""


@built_once(maxsize=256)
def column_checks(rows: sa.Table) -> dict[str, _Check]:
    """Return the check of each column's values: it takes the column's name and a value, not None."""
    return {column.name: _check_of(getattr(column.type, "impl_instance", column.type)) for column in rows.columns}


def _check_of(kind: Any) -> _Check:
    if getattr(kind, "unsigned", False):
        return _any_int
    return next((check for of, check in _CHECKS if isinstance(kind, of)), _if_text)
