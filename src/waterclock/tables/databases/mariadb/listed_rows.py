"""Deletes many rows of the catalogue with one statement on MariaDB.

The keys are in a JSON text. Only an outer join makes the server begin with them: otherwise it may scan a small table,
and wait for locked rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from waterclock.tables.databases.json_list import JsonList

_DIALECT = mysql.dialect()


def delete_listed(name: str, columns: Sequence[sa.Column[Any]], *which: sa.ColumnElement[bool]) -> sa.TextClause:
    """Delete rows whose values of ``columns`` are in the list bound as ``name`` and for which ``which`` is true.

    It waits for no other row. The list has tuples, or names if it is of one column.
    """
    table, listed = columns[0].table.name, sa.table("listed", *(sa.column(one.name, one.type) for one in columns))
    its = sa.and_(*which, *(column == listed.c[column.name] for column in columns))
    on = its.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})
    text = (
        f"DELETE {table} FROM JSON_TABLE(:{name}, {_columns(columns)}) AS listed LEFT JOIN {table} ON {on}"  # all ours
    )
    return sa.text(text).bindparams(sa.bindparam(name, type_=JsonList()))


def _columns(columns: Sequence[sa.Column[Any]]) -> str:
    paths = ["$"] if len(columns) == 1 else [f"$[{nth}]" for nth in range(len(columns))]
    its = (f"{one.name} {one.type.compile(_DIALECT)} PATH '{path}'" for one, path in zip(columns, paths, strict=True))
    return f"'$[*]' COLUMNS ({', '.join(its)})"
