"""Making a message table: its SQL table and its entry in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import message_tables
from waterclock.errors import AlreadyExistsError
from waterclock.tables.context import table_dialect
from waterclock.tables.options import TableOptions
from waterclock.tables.schema import check_table_name, message_rows, user_columns


def create(
    backend: Backend, name: str, options: TableOptions, columns: Mapping[str, object] | None, *, exist_ok: bool
) -> None:
    """Make a message table.

    Raises
    ------
    AlreadyExistsError
        Where the table exists and ``exist_ok`` is False, or where another SQL table has the name.
    InvalidArgumentError
        For a name or a further column that a table cannot have.
    """
    check_table_name(name)
    dialect = table_dialect(backend)
    id_items = dialect.id_items(name, options.id_type)
    rows = message_rows(name, options.id_type, options.payload, user_columns(columns), id_items)
    known = sa.select(message_tables.c.table_id).where(message_tables.c.name == name)

    def work(connection: sa.Connection) -> None:
        if connection.execute(known).first() is not None:
            if exist_ok:
                return
            raise AlreadyExistsError(f"message table {name!r} exists; open it, or pass exist_ok=True")
        if sa.inspect(connection).has_table(name):
            raise AlreadyExistsError(f"an SQL table named {name!r} exists that is no message table; use another name")
        dialect.create(connection, rows, options.id_type, grouped=options.groups is not None)
        connection.execute(
            sa.insert(message_tables).values(
                name=name, options=options.to_json(), revision=1, time_created=backend.now_sql()
            )
        )

    backend.transact(work)
