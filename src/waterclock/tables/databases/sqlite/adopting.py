"""Turns an SQLite table into a message table: replaces it with a copy, in the caller's transaction.

SQLite can neither change a primary key nor add a column that numbers rows, and VACUUM changes SQLite's own row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import sqlalchemy as sa
from sqlalchemy.schema import DDL

from waterclock.errors import SchemaError


def adopt(connection: sa.Connection, rows: sa.Table, present: Collection[str], create: Callable[[], None]) -> None:
    """Copy the table into one that ``create`` builds, and restore its indexes and triggers."""
    name = rows.name
    quote = connection.dialect.identifier_preparer.quote
    _check_copyable(connection, name)
    kept = _own_statements(connection, name)
    aside = f"waterclock_adopting_{name}"
    names = {"table": quote(name), "aside": quote(aside)}
    connection.execute(DDL("CREATE TABLE %(aside)s AS SELECT * FROM %(table)s", context=names))
    connection.execute(DDL("DROP TABLE %(table)s", context=names))
    create()
    columns = [column for column in rows.columns if column.name in present]
    old = sa.table(aside, *(sa.column(column.name) for column in columns))
    source = sa.select(*(old.c[column.name] for column in columns)).order_by(old.c.time_created, old.c.id)
    connection.execute(sa.insert(rows).from_select([column.name for column in columns], source))
    connection.execute(DDL("DROP TABLE %(aside)s", context=names))
    for statement in kept:
        connection.exec_driver_sql(statement)


def _own_statements(connection: sa.Connection, name: str) -> list[str]:
    schema = sa.table("sqlite_master", sa.column("type"), sa.column("tbl_name"), sa.column("sql"))
    statement = sa.select(schema.c.sql).where(
        schema.c.tbl_name == name, schema.c.type.in_(("index", "trigger")), schema.c.sql.is_not(None)
    )
    return list(connection.scalars(statement))


def _check_copyable(connection: sa.Connection, name: str) -> None:
    inspector = sa.inspect(connection)
    referring = [
        other
        for other in inspector.get_table_names()
        if any(key["referred_table"] == name for key in inspector.get_foreign_keys(other))
    ]
    reasons = {
        f"the foreign keys of {', '.join(referring)} to it": bool(referring),
        "its foreign keys": bool(inspector.get_foreign_keys(name)),
        "its CHECK constraints": bool(inspector.get_check_constraints(name)),
        "its computed columns": any("computed" in column for column in inspector.get_columns(name)),
        "its UNIQUE constraints on columns other than id": any(
            key["column_names"] != ["id"] for key in inspector.get_unique_constraints(name)
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SchemaError(
                f"cannot adopt {name!r}: SQLite has to copy the table, and the copy would lose {reason}. Create a"
                " message table with another name, and insert the rows there"
            )


def type_remedy(table: str, column: str, wanted: str) -> str:
    """Describe how to change a column's type, which SQLite cannot do in place."""
    return f'CREATE TABLE with {column} {wanted} under another name, INSERT … SELECT, and DROP TABLE "{table}"'
