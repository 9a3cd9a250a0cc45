"""Compiles updates of tables in which a user chose names of columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

EXPLICIT = "waterclock_explicit"
"""Key in a table's ``info``: an UPDATE of it sets only the columns that the statement names."""


def compile_explicitly(dialect: sa.Dialect) -> None:
    """Keep updates of such tables from setting columns that share a name with a parameter. Changes no other statement.

    SQLAlchemy would add them to the SET clause, or fail if the statement uses the parameter elsewhere. The dialect may
    be that of a caller's engine.
    """
    if not hasattr(dialect.statement_compiler, "is_explicit"):
        dialect.statement_compiler = _explicit(dialect.statement_compiler)


@cache  # one class for each of SQLAlchemy's: only dialects with the same class share compiled statements
def _explicit(base: type[Any]) -> type[Any]:
    class ExplicitCompiler(base):
        is_explicit = True

        def visit_update(self, update_stmt: Any, *arguments: Any, **options: Any) -> Any:
            """Ignore the names of parameters for `EXPLICIT` tables."""
            if EXPLICIT in getattr(update_stmt.table, "info", ()):
                self.column_keys = None
            return super().visit_update(update_stmt, *arguments, **options)

    return ExplicitCompiler
