"""Changes and deletes many rows of the catalogue with one statement on MariaDB.

The keys are in a JSON text. Only an INSERT or an outer join makes the server begin with them: otherwise it may scan a
small table, and wait for locked rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.databases.json_list import JsonList

_DIALECT = mysql.dialect()


def change_listed(
    table_id: int,
    columns: Sequence[sa.Column[int]],
    same: Mapping[str, int],
    least: Mapping[str, sa.ColumnElement[int]],
) -> sa.Insert:
    """Change locked rows of keys: set ``columns`` to their own values, and others to ``same``.

    The rows are bound in the list ``changes``: key, level, and the values. A column gets no value below that in
    ``least``.

    All rows exist, so it inserts none. An UPDATE with a list computes all values before it writes the first row: if a
    lock then held it up, its times would be in the past.
    """
    every = [message_keys.c.message_key, message_keys.c.level, *columns]
    listed = sa.func.json_table(sa.bindparam("changes", type_=JsonList()), sa.text(_columns(every)))
    changes = listed.table_valued(*(sa.column(one.name, one.type) for one in every), name="changes")
    own: dict[str, Any] = {column.name: changes.c[column.name] for column in columns}
    own |= {name: sa.func.greatest(own[name], least[name]) for name in least.keys() & own.keys()}
    rest: dict[str, Any] = {
        one.name: sa.literal_column("0") for one in message_keys.c if not one.nullable and one.server_default is None
    }
    new = rest | {"table_id": sa.literal(table_id, sa.BigInteger)} | {one.name: changes.c[one.name] for one in every}
    added = mysql.insert(message_keys).from_select(list(new), sa.select(*new.values()), include_defaults=False)
    return added.on_duplicate_key_update(own | {name: sa.literal_column(str(number)) for name, number in same.items()})


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
