"""What our statements need of a connection: SQLAlchemy's has it, and `Direct`, which is the driver's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa


class SqlRows(Protocol):
    """What a statement gave. Columns are attributes of a row, by their names."""

    @property
    def rowcount(self) -> Any:  # an int, behind a descriptor of SQLAlchemy's that a protocol cannot name
        """How many rows it changed."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def all(self) -> Sequence[Any]:
        """Give the rows."""
        ...

    def first(self) -> Any:
        """Give the first row, or None."""
        ...

    def one(self) -> Any:
        """Give the only row of a statement that always has one."""
        ...

    def scalar(self) -> Any:
        """Give the first column of the first row, or None."""
        ...

    def scalar_one(self) -> Any:
        """Give the first column of the only row of a statement that always has one."""
        ...


class SqlConnection(Protocol):
    """A connection that takes SQLAlchemy's statements."""

    @property
    def dialect(self) -> sa.Dialect:
        """How its statements are written."""
        ...

    def execute(
        self,
        statement: sa.Executable,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        /,
    ) -> SqlRows:
        """Run a statement, once or for each of several parameters."""
        ...

    def scalars(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None, /) -> Iterable[Any]:
        """Run a statement, and give the first column."""
        ...

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> Any:
        """Run a statement of the driver's, and give what has ``rowcount`` and the rows."""
        ...
