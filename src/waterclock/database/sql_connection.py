"""The interface of connections for our statements. SQLAlchemy's connection and `DirectConnection` implement it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa


class SqlRows(Protocol):
    """The result of a statement. Columns are attributes of a row."""

    @property
    def rowcount(self) -> Any:  # an int, behind a descriptor of SQLAlchemy that a protocol cannot declare
        """Return the number of rows changed."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def all(self) -> Sequence[Any]: ...

    def first(self) -> Any:
        """Return the first row, or None."""
        ...

    def one(self) -> Any:
        """Return the only row of a statement that always has one."""
        ...

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        ...

    def scalar_one(self) -> Any:
        """Return the first column of the only row of a statement that always has one."""
        ...


class SqlConnection(Protocol):
    """A connection that takes SQLAlchemy's statements."""

    @property
    def dialect(self) -> sa.Dialect:
        """Return the dialect of its statements."""
        ...

    def execute(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None, /
    ) -> SqlRows:
        """Run a statement, once or for each of several parameters."""
        ...

    def scalars(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None, /) -> Iterable[Any]:
        """Run a statement, and return the first column."""
        ...

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> Any:
        """Run a raw SQL statement, and return an object with ``rowcount`` and the rows."""
        ...
