"""Turns an existing SQL table into a message table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.types import TypeEngine

from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError
from waterclock.tables.catalogue.context import table_dialect
from waterclock.tables.catalogue.creating import check_types, ensure_dead_letter_table, make_if_missing, register
from waterclock.tables.model.options import IdType, Payload, TableOptions
from waterclock.tables.model.schema import (
    ADOPTED,
    DOCUMENT_COLUMNS,
    INTERNAL_COLUMNS,
    OF_PLAIN_TABLES,
    OWN_COLUMNS,
    check_table_name,
    is_reserved,
    message_rows,
    user_columns,
)
from waterclock.tables.model.values.reflected_types import reflected_columns

_TIMES = ("time_scheduled", "time_next", "time_created", "time_acked")
_SMALL = (sa.SmallInteger, mysql.TINYINT, mysql.MEDIUMINT)
"""Integer types that are too small to count how often a message is sent."""
_IDS: dict[IdType, tuple[type[TypeEngine[Any]], ...]] = {
    "bigint": (sa.Integer,),
    "text": (sa.String,),
    "uuid": (sa.Uuid, sa.String),
}
_PAYLOADS: dict[Payload, tuple[type[TypeEngine[Any]], ...]] = {
    "bytes": (sa.LargeBinary, sa.types.BINARY, sa.types.VARBINARY, mysql.MEDIUMBLOB, mysql.LONGBLOB),
    "text": (sa.String,),
    "json": (sa.JSON,),
}
_OURS: dict[str, tuple[type[TypeEngine[Any]], ...]] = {
    "priority": (sa.Integer,),
    "group_id": (sa.String,),
    "headers": (sa.String,),
    "last_error": (sa.String,),
    "failed_attempts": (sa.String,),
    "saved_progress": (sa.String,),
    "expires_at": (sa.Integer,),
    "closes_group": (sa.Integer,),
}


def adopt(
    backend: Backend, name: str, options: TableOptions, columns: Mapping[str, object] | None, *, exist_ok: bool
) -> None:
    """Turn the SQL table of this name into a message table by adding the missing columns.

    Raises `NotFoundError` if no SQL table has this name. Raises `AlreadyExistsError` if it is already a message table
    and ``exist_ok`` is False. Raises `SchemaError` if a column of *Vitess Messaging* is missing or has another type;
    the error says what to run.
    """
    check_table_name(name)
    if options.purge_by != "rows":
        raise InvalidArgumentError(
            f"purge_by must be 'rows' for an adopted table, got {options.purge_by!r}. To use this option, create a new"
            " message table and insert the rows there"
        )
    if options.turns_by is not None:
        option = next(iter(options.keys_named))
        raise InvalidArgumentError(
            f"{option} must be omitted for an adopted table, got {quoted(getattr(options, option))}. To use this"
            " option, create a new message table and insert the rows there"
        )
    wanted = user_columns(columns)
    check_types(backend, wanted)
    complete = options.with_dead_letter(name)

    def adopt_table(connection: sa.Connection) -> None:
        inspector = sa.inspect(connection)
        if not inspector.has_table(name):
            raise NotFoundError(f"no SQL table named {name!r} to adopt. To create the table, omit adopt")
        found = {column["name"]: column for column in reflected_columns(connection, name)}
        _check(backend, inspector, name, found, options)
        _check_ids(connection, name)
        dialect = table_dialect(backend)
        theirs = [
            _as_it_is(column) for column in found.values() if column["name"] not in (*OWN_COLUMNS, *OF_PLAIN_TABLES)
        ]
        added = [column for column in wanted if column.name not in found]
        id_items = dialect.id_items(name, options.id_type)
        rows = message_rows(name, options.id_type, options.payload, [*theirs, *added], id_items)
        ensure_dead_letter_table(backend, connection, name, complete, [*theirs, *added])
        _fill(backend, connection, name)
        dialect.adopt(connection, rows, options.id_type, found.keys())
        dialect.equip(
            connection, rows, options.id_type, grouped=options.groups is not None, free=options.has_free_messages
        )
        register(backend, connection, name, complete)

    make_if_missing(backend, name, options, adopt_table, exist_ok=exist_ok)


def _check(
    backend: Backend, inspector: sa.Inspector, name: str, found: Mapping[str, ReflectedColumn], options: TableOptions
) -> None:
    dialect, shown = table_dialect(backend), backend.engine.dialect
    blank = message_rows(name, options.id_type, options.payload, [])
    # An interrupted adoption has added columns if the database commits each change separately.
    begun = "seq" in found and found["seq"].get("comment") == ADOPTED
    for column in DOCUMENT_COLUMNS:
        wanted = blank.c[column].type.compile(shown)
        if column not in found:
            quote = shown.identifier_preparer.quote
            raise SchemaError(
                f"cannot adopt {name!r}: it has no column {column!r}. Run ALTER TABLE {quote(name)}"
                f" ADD COLUMN {quote(column)} {wanted}"
            )
        has = found[column]["type"]
        if not _fits(has, column, options, shown.name):
            hint = f"; or pass the matching {'id_type' if column == 'id' else 'payload'}" * (
                column in ("id", "message")
            )
            raise SchemaError(
                f"cannot adopt {name!r}: column {column!r} must be {wanted}, got {has.compile(shown)}. Run"
                f" {dialect.type_remedy(name, column, wanted)}{hint}"
            )
    for column, allowed in _OURS.items():
        if column in found and not isinstance(found[column]["type"], allowed):
            wanted = blank.c[column].type.compile(shown)
            raise SchemaError(
                f"cannot adopt {name!r}: Waterclock uses column {column!r} as {wanted}, got"
                f" {found[column]['type'].compile(shown)}. Rename your column"
            )
    for column in (*INTERNAL_COLUMNS, *OF_PLAIN_TABLES):
        if column in found and not begun:
            raise SchemaError(
                f"cannot adopt {name!r}: Waterclock adds a column {column!r}, which the table already has. Rename your"
                " column"
            )
    _check_names(name, found, is_folding=shown.name != "postgresql")
    ours = {f"{name}_{which}_idx" for which in ("next", "acked", "group", "unrouted", "free", "expires", "late")}
    for index in inspector.get_indexes(name):
        if not begun and index["name"] in ours:
            raise SchemaError(
                f"cannot adopt {name!r}: Waterclock creates an index {index['name']!r}, which the table already has."
                " Rename your index"
            )


def _check_names(table: str, columns: Collection[str], *, is_folding: bool) -> None:
    """Raise SchemaError if a column has a name that Waterclock uses.

    ``is_folding`` says whether names that differ only in case are the same.
    """
    for column in columns:
        as_ours = column.lower() if is_folding else column
        is_refused = is_reserved(column) and column not in OF_PLAIN_TABLES  # those may be of an interrupted adoption
        if not column or is_refused or (as_ours in OWN_COLUMNS and column not in OWN_COLUMNS):
            raise SchemaError(
                f"cannot adopt {table!r}: Waterclock uses the name {as_ours!r} itself. Rename your column {column!r}"
            )


def _fits(has: TypeEngine[Any], column: str, options: TableOptions, database: str) -> bool:
    # All integers of SQLite have 64 bits.
    if column in _TIMES:
        return isinstance(has, sa.Integer if database == "sqlite" else sa.BigInteger)
    if column == "epoch":
        return isinstance(has, sa.Integer) and (database == "sqlite" or not isinstance(has, _SMALL))
    if column == "id":
        return isinstance(has, _IDS[options.id_type])
    if options.payload == "json" and database != "postgresql":
        return isinstance(has, sa.JSON | sa.String)  # SQLite stores it as text
    return isinstance(has, _PAYLOADS[options.payload])


def _check_ids(connection: sa.Connection, name: str) -> None:
    rows = sa.table(name, sa.column("id"))
    twice = sa.select(rows.c.id, sa.func.count()).group_by(rows.c.id).having(sa.func.count() > 1).limit(1)
    found = connection.execute(twice).first()
    if found is not None:
        raise SchemaError(f"cannot adopt {name!r}: ids must be unique, but {found[1]} rows have id {found[0]!r}")
    if connection.execute(sa.select(rows.c.id).where(rows.c.id.is_(None)).limit(1)).first() is not None:
        raise SchemaError(f"cannot adopt {name!r}: the id of a row is NULL")


def _as_it_is(column: ReflectedColumn) -> sa.Column[Any]:
    default = column["default"]
    return sa.Column(
        column["name"],
        column["type"],
        nullable=column["nullable"],
        server_default=None if default is None else sa.text(default),
    )


def _fill(backend: Backend, connection: sa.Connection, name: str) -> None:
    """Fill columns that plain SQL left NULL with the values that defaults provide from now on."""
    rows = sa.table(name, *(sa.column(column, sa.BigInteger) for column in (*_TIMES, "epoch")))
    now = backend.now_sql()
    due = sa.func.coalesce(rows.c.time_next, rows.c.time_scheduled, now)
    connection.execute(
        sa.update(rows)
        .where(
            rows.c.epoch.is_(None)
            | rows.c.time_created.is_(None)
            | rows.c.time_scheduled.is_(None)
            | (rows.c.time_next.is_(None) & rows.c.time_acked.is_(None))
        )
        # In this order, because MariaDB assigns from left to right.
        .ordered_values(
            (rows.c.time_next, sa.case((rows.c.time_acked.is_(None), due), else_=rows.c.time_next)),
            (rows.c.time_created, sa.func.coalesce(rows.c.time_created, rows.c.time_scheduled, now)),
            (rows.c.time_scheduled, sa.func.coalesce(rows.c.time_scheduled, now)),
            (rows.c.epoch, sa.func.coalesce(rows.c.epoch, 0)),
        )
    )
