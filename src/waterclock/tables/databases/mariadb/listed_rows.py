"""Changes and deletes many rows of the catalogue with one statement on MariaDB.

The keys are in a JSON text. Only an outer join makes the server begin with them: otherwise it may scan a small table,
and wait for locked rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from waterclock.tables.databases.json_list import JsonList
from waterclock.tables.databases.table_dialect import LongKey

_DIALECT = mysql.dialect()


def change_listed(
    value: int,
    key: LongKey,
    columns: Sequence[sa.Column[int]],
    same: Mapping[str, int],
    least: Mapping[str, sa.ColumnElement[int]],
) -> sa.Update:
    """Return the statement of `TableDialect.change_listed`."""
    every = [*key[1:], *columns]
    listed = sa.func.json_table(sa.bindparam("changes", type_=JsonList()), sa.text(_columns(every)))
    changes = listed.table_valued(*(sa.column(one.name, one.type) for one in every), name="changes")
    own: dict[Any, Any] = {column: changes.c[column.name] for column in columns}
    own |= {one: sa.func.greatest(own[one], least[one.name]) for one in columns if one.name in least}
    table = key[0].table
    return sa.update(changes.outerjoin(table, _is_same(value, key, changes))).values(
        own | {table.c[name]: sa.literal_column(str(number)) for name, number in same.items()}
    )


def delete_listed(value: int, key: LongKey) -> sa.TextClause:
    """Return the statement of `TableDialect.delete_listed`."""
    its = key[1:]
    places = sa.table("places", *(sa.column(one.name, one.type) for one in its))
    on = _is_same(value, key, places).compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})
    listed = f"JSON_TABLE(:places, {_columns(its)}) AS places"
    text = f"DELETE {key[0].table.name} FROM {listed} LEFT JOIN {key[0].table.name} ON {on}"
    return sa.text(text).bindparams(sa.bindparam("places", type_=JsonList()))


def _columns(columns: Sequence[sa.Column[Any]]) -> str:
    its = (f"{one.name} {one.type.compile(_DIALECT)} PATH '$[{nth}]'" for nth, one in enumerate(columns))
    return f"'$[*]' COLUMNS ({', '.join(its)})"


def _is_same(value: int, key: LongKey, listed: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(key[0] == value, *(column == listed.c[column.name] for column in key[1:]))
