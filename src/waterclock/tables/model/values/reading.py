"""Reads values that plain SQL may have written. An unreadable value becomes an object instead of raising an error.

An error while rows are fetched would fail the claim and every later claim, and so stop all consumers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from waterclock._support.quoting import quoted


class Unreadable:
    """Stands for a value that could not be read."""

    def __init__(self, value: object, error: Exception) -> None:
        self.problem = f"{quoted(str(value))}: {error}"  # why it could not be read

    def __repr__(self) -> str:
        return f"<Unreadable {self.problem}>"


class Guarded(sa.TypeDecorator[Any]):
    """Wraps a type: values that it cannot read become `Unreadable`."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> None:
        super().__init__()
        self.kind = kind
        self.impl = self.impl_instance = sa.types.to_instance(kind)  # pyright: ignore[reportIncompatibleVariableOverride]  # an instance, as SQLAlchemy makes it one

    @property
    def python_type(self) -> type[Any]:
        return self.impl_instance.python_type

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Read with the wrapped type."""
        process = super().result_processor(dialect, coltype)
        if process is None:
            return None

        def read(value: Any) -> Any:
            try:
                return process(value)
            except Exception as error:  # noqa: BLE001  # a type may raise anything for a value that is not its own
                return Unreadable(value, error)

        return read


def value_of(row: Any, column: str) -> Any:
    """Return a row's value, also of a column with the name of an attribute that SQLAlchemy's rows have, such as t."""
    if isinstance(row, sa.Row):
        return row._mapping[column]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # its public name
    return getattr(row, column)


def unreadable(row: Any, further: Iterable[str]) -> str | None:
    """Return which part of a message's row cannot be read; None if all can.

    ``further`` are the names of the user's columns.
    """
    for name in ("id", "message", *further):
        value = value_of(row, name)
        if type(value) is Unreadable:
            return f"the column {name} cannot be read: {value.problem}"
    if row.headers is None or _is_object(row.headers):
        return None
    return f"the column headers cannot be read: {quoted(row.headers)} is not a JSON object"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # nested 100,000 deep, it raises the latter
        return False
