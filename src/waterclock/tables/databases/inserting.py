"""Converts values for bulk inserts, column by column, to the form that the driver takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.database.per_database_cache import built_once
from waterclock.errors import InvalidArgumentError

_Process = Callable[[Any], Any]

_BUSY = 1.0  # s; a put this soon after the last one draws ids ahead
_MOST_AHEAD = 8192  # ids
OMITTED: Any = object()
"""Stands for the value of a column that the database is to fill with its default."""
_IF_LEFT_OUT = {"at": None, "group_id": None, "headers": None, "priority": 0, "expires_at": None, "closes_group": 0}


@dataclass(frozen=True, slots=True)
class NewRows:
    """Messages to insert."""

    columns: dict[str, list[Any]]
    """Their values by column, as the driver takes them; ``at`` is when they will be sent, None for now. Columns with
    only default values are left out.
    """
    fresh: bool  # whether no other writer can have chosen their ids

    @property
    def count(self) -> int:
        return len(self.columns["id"])

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Return the values by the names of their parameters."""
        return {parameter_name(name): values for name, values in self.columns.items()}

    def tuples(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the values of these columns, message by message."""
        return list(zip(*(self.columns[name] for name in names), strict=True))


def parameter_name(column: str) -> str:
    """Return a parameter's name for a column's value.

    SQLAlchemy would change a name with spaces or punctuation, perhaps to that of another column.
    """
    return column if column.isidentifier() else f"column_{column.encode().hex()}"


def new_rows(rows: sa.Table, dialect: sa.Dialect, messages: Sequence[dict[str, Any]], *, fresh: bool) -> NewRows:
    """Convert messages to columns. Either all or none have a value for a column with a default."""
    columns: dict[str, list[Any]] = {}
    for name, process in _processors(rows, dialect, tuple(messages[0])):
        values = list(map(itemgetter(name), messages))
        if name in _IF_LEFT_OUT and values.count(_IF_LEFT_OUT[name]) == len(values):
            continue
        if values[0] is OMITTED:
            continue
        columns[name] = values if process is None else _processed(name, values, process)
    return NewRows(columns, fresh)


def _processed(name: str, values: list[Any], process: _Process) -> list[Any]:
    value: Any = None
    try:
        return [process(value := one) for one in values]
    except (
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:  # a type may raise any of these for a value of another type
        raise InvalidArgumentError(f"{name} must fit the column, got {quoted(value)}: {error}") from error


@built_once(maxsize=256)
def _processors(rows: sa.Table, dialect: sa.Dialect, names: tuple[str, ...]) -> list[tuple[str, _Process | None]]:
    types = [sa.BigInteger() if name == "at" else rows.c[name].type for name in names]
    return [(name, kind.dialect_impl(dialect).bind_processor(dialect)) for name, kind in zip(names, types, strict=True)]


class DrawnIds:
    """Ids drawn from a sequence in advance, so that a put saves a round trip.

    A put must know its id before the first try, so that a retry after a lost answer inserts nothing twice. With
    frequent puts, the number of drawn ids doubles each time. Unused ids leave gaps. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: list[int] = []
        self._ahead = 1
        self._drawn_at = -_BUSY

    def take(self, count: int, draw: Callable[[int], Sequence[int]]) -> list[int]:
        """Return ``count`` ids; ``draw`` gets more from the database."""
        with self._lock:
            ids, self._ids = self._ids[:count], self._ids[count:]
            if len(ids) == count:
                return ids
            now = moments.monotonic()
            self._ahead = min(self._ahead * 2, _MOST_AHEAD) if now - self._drawn_at < _BUSY else 1
            self._drawn_at = now
            ahead = min(self._ahead * count, _MOST_AHEAD)
        missing = count - len(ids)
        drawn = list(draw(max(missing, ahead)))
        with self._lock:
            self._ids += drawn[missing:]
        return ids + drawn[:missing]
