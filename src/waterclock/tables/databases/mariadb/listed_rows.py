"""Changes and deletes many rows of the catalogue with one statement on MariaDB.

The keys are in a JSON text. Only an INSERT or an outer join makes the server begin with them: otherwise it may scan a
small table, and wait for locked rows.
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
) -> sa.Insert:
    """Return the statement of `TableDialect.change_listed`.

    All rows exist, so it inserts none. An UPDATE with a list computes all values before it writes the first row: if a
    lock then held it up, its times would be in the past.
    """
    every = [*key[1:], *columns]
    listed = sa.func.json_table(sa.bindparam("changes", type_=JsonList()), sa.text(_columns(every)))
    changes = listed.table_valued(*(sa.column(one.name, one.type) for one in every), name="changes")
    own: dict[str, Any] = {column.name: changes.c[column.name] for column in columns}
    own |= {name: sa.func.greatest(own[name], least[name]) for name in least.keys() & own.keys()}
    table = key[0].table
    rest: dict[str, Any] = {
        one.name: sa.literal_column("0") for one in table.c if not one.nullable and one.server_default is None
    }
    new = rest | {key[0].name: sa.literal(value, sa.BigInteger)} | {one.name: changes.c[one.name] for one in every}
    added = mysql.insert(table).from_select(list(new), sa.select(*new.values()), include_defaults=False)
    return added.on_duplicate_key_update(own | {name: sa.literal_column(str(number)) for name, number in same.items()})


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
