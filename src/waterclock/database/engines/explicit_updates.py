"""Compiles updates of tables in which a user chose names of columns."""

from __future__ import annotations

from functools import cache
from typing import Any

EXPLICIT = "waterclock_explicit"
"""Key in a table's ``info``: an UPDATE of it sets only the columns that the statement names."""


@cache  # one class for each of SQLAlchemy's: only dialects with the same class share compiled statements
def explicit_compiler(base: type[Any]) -> type[Any]:
    """Return a compiler whose updates of such tables set no column that shares its name with a parameter.

    SQLAlchemy would add it to the SET clause, or fail if the statement uses the parameter elsewhere.
    """

    class ExplicitCompiler(base):
        def visit_update(self, update_stmt: Any, *arguments: Any, **options: Any) -> Any:
            """Ignore the names of parameters for `EXPLICIT` tables."""
            if EXPLICIT in getattr(update_stmt.table, "info", ()):
                self.column_keys = None
            return super().visit_update(update_stmt, *arguments, **options)

    return ExplicitCompiler
