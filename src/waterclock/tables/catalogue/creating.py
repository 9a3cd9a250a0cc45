"""Creates a message table: its SQL table, its row in the catalogue, and its dead-letter table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Number
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine.mock import MockConnection

from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.database.shared_compile_cache import alike
from waterclock.differing_options import warn_of_differences
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, SchemaError
from waterclock.tables.catalogue.context import TableContext, table_dialect
from waterclock.tables.catalogue.table_row import find, forget
from waterclock.tables.catalogue.totals import start_totals
from waterclock.tables.databases.table_dialect import TableDialect
from waterclock.tables.model.days import LONGEST_NAME, Days, days_to_add
from waterclock.tables.model.options import DURATIONS, IdType, Payload, TableOptions
from waterclock.tables.model.schema import (
    DEAD_COLUMNS,
    OWN_COLUMNS,
    UserColumn,
    check_table_name,
    key_source,
    message_rows,
    user_columns,
)


def create(
    backend: Backend, name: str, options: TableOptions, columns: Mapping[str, object] | None, *, exist_ok: bool
) -> None:
    """Create a message table.

    Raises `AlreadyExistsError` if the table exists and ``exist_ok`` is False, or if another SQL table has the name.
    Raises `InvalidArgumentError` for an invalid name or column. Raises `SchemaError` if the dead-letter table exists
    and does not fit.
    """
    check_table_name(name)
    extra = user_columns(columns)
    check_types(backend, extra)
    days_of(table_dialect(backend), name, options)  # raises before anything is created
    if options.turns_by is not None:
        key_source(options.turns_by, extra)
    complete = options.with_dead_letter(name)

    def create_table(connection: sa.Connection) -> None:
        ensure_dead_letter_table(backend, connection, name, complete, extra)
        _make(backend, connection, name, complete, extra)

    make_if_missing(backend, name, options, create_table, exist_ok=exist_ok)


def check_types(backend: Backend, columns: Sequence[sa.Column[Any]]) -> None:
    """Raise InvalidArgumentError if the database has no type for a column."""
    dialect = backend.engine.dialect
    for column in columns:
        try:
            column.type.compile(dialect)
        except exc.CompileError as error:
            raise InvalidArgumentError(
                f"columns: the type of {quoted(column.name)} must be complete and known to {dialect.name}, got"
                f" {column.type!r}"
            ) from error


def make_if_missing(
    backend: Backend, name: str, options: TableOptions, make: Callable[[sa.Connection], None], *, exist_ok: bool
) -> None:
    """Create a message table, unless it exists; warn if it exists with other options.

    Raises `AlreadyExistsError` if it exists and ``exist_ok`` is False.
    """
    known = sa.select(message_tables.c.options).where(message_tables.c.name == name)

    def make_if_unknown(connection: sa.Connection) -> TableOptions | None:
        text = connection.execute(known).scalar()
        if text is None:
            make(connection)
            return None
        if exist_ok:
            return TableOptions.from_json(name, text)
        raise AlreadyExistsError(f"message table {quoted(name)} already exists. Open the table, or pass exist_ok=True")

    backend.create_catalogue()
    existing = backend.transact(make_if_unknown)
    if existing is not None:
        defaults = asdict(TableOptions.check())
        warn_of_differences(
            f"message table {quoted(name)}",
            asdict(options),
            asdict(existing),
            defaults,
            DURATIONS,
            stacklevel=5,  # above are this function, the one that creates or adopts, and the two methods
        )


def ensure_dead_letter_table(
    backend: Backend, connection: sa.Connection, name: str, options: TableOptions, columns: Sequence[sa.Column[Any]]
) -> None:
    """Create the dead-letter table of the table ``name`` if missing.

    Raises `InvalidArgumentError` if it holds another message table's dead letters, or its name is invalid. Raises
    `SchemaError` if it exists and does not fit, naming the column.
    """
    dead = options.dead_letter
    if dead is None:
        return
    _check_name(connection, name, dead)
    for column in columns:
        if column.name in DEAD_COLUMNS:
            raise InvalidArgumentError(
                f"columns must not contain {quoted(column.name)} in a table with dead letters. Rename the column"
            )
    if not sa.inspect(connection).has_table(dead):
        its = sa.select(message_tables.c.table_id).where(message_tables.c.name == dead)
        for table_id in connection.scalars(its).all():  # plain SQL dropped it, and its catalogue row is in the way
            forget(connection, table_id, dead)
            table_dialect(backend).drop(connection, sa.Table(dead, sa.MetaData()))
    elif (found := find(backend, connection, dead)) is not None:
        _check_fit(found, options, columns)
        return
    else:
        raise SchemaError(f"dead_letter must be a message table, got the SQL table {quoted(dead)}")
    plain = replace(
        options,
        groups=None,
        group_idle=None,
        rebalance="manual",
        max_attempts=None,
        dead_letter=None,
        on_expired="drop",
        rate_limit=None,
        limit=None,
        rate=None,
        fair_by=None,
        weights=None,
        purge_by="rows",
        columns={**options.columns, **DEAD_COLUMNS},
    )
    copies = [sa.Column(column.name, column.type) for column in columns]
    _make(backend, connection, dead, plain, [*copies, *user_columns(DEAD_COLUMNS)])


def _make(
    backend: Backend, connection: sa.Connection, name: str, options: TableOptions, columns: Sequence[sa.Column[Any]]
) -> None:
    dialect = table_dialect(backend)
    if sa.inspect(connection).has_table(name):
        raise AlreadyExistsError(
            f"an SQL table named {quoted(name)} already exists. Use another name, or pass adopt=True to turn the SQL"
            " table into a message table"
        )
    days = days_of(dialect, name, options)
    statements = _statements(
        dialect,
        alike(connection.dialect),
        name,
        options.id_type,
        options.payload,
        tuple(UserColumn(one.name, one.type) for one in columns),
        grouped=options.groups is not None,
        free=options.has_free_messages,
        rejects_ungrouped=options.groups is not None and options.ungrouped == "reject",
        turns_by=options.turns_by,
        by_day=days is not None,
    )
    for statement in (";\n".join(statements),) if dialect.sends_at_once else statements:
        connection.exec_driver_sql(statement)
    if days is not None:
        days.add(connection, name, days_to_add((), backend.now(connection)))
    register(backend, connection, name, options)


@built_once(maxsize=64)
def _statements(
    dialect: TableDialect,
    driver: sa.Dialect,
    name: str,
    id_type: IdType,
    payload: Payload,
    columns: tuple[UserColumn, ...],
    *,
    grouped: bool,
    free: bool,
    rejects_ungrouped: bool,
    turns_by: str | None,
    by_day: bool,
) -> Sequence[str]:
    # Building and compiling them takes longer than sending them. Tests, and the databases of tenants, often have equal
    # tables.
    extra = [sa.Column(one.name, one.kind) for one in columns]
    rows = message_rows(name, id_type, payload, extra, dialect.id_items(name, id_type))
    if rejects_ungrouped:
        # Plain SQL must fail, too: otherwise such a message would be put and never sent.
        given = rows.c.group_id.is_not(None) & (rows.c.group_id != "")
        rows.append_constraint(sa.CheckConstraint(given, f"{name}_group"))
    texts: list[str] = []
    recorder: Any = MockConnection(driver, lambda statement, _: texts.append(str(statement.compile(dialect=driver))))
    maker = (dialect.days if by_day else None) or dialect
    maker.create(recorder, rows, id_type, grouped=grouped, free=free)
    if turns_by is not None:
        dialect.equip_keys(recorder, rows, key_source(turns_by, extra))
    return texts


def register(backend: Backend, connection: sa.Connection, name: str, options: TableOptions) -> None:
    """Insert a message table into the catalogue."""
    row = sa.insert(message_tables).values(
        name=name, options=options.to_json(), revision=1, time_created=backend.now_sql()
    )
    start_totals(connection, connection.execute(row.returning(message_tables.c.table_id)).scalar_one())


def _check_name(connection: sa.Connection, name: str, dead: str) -> None:
    try:
        check_table_name(dead)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"dead_letter: {error}") from None
    if dead == name:
        raise InvalidArgumentError(f"dead_letter must be another table, got the table {quoted(dead)} itself")
    # Locked, so that two tables cannot choose it at the same time.
    tables_name = message_tables.c.name
    connection.execute(sa.select(tables_name).where(tables_name == dead).with_for_update())
    for other, text in connection.execute(sa.select(tables_name, message_tables.c.options).where(tables_name != name)):
        if json.loads(text).get("dead_letter") == dead:
            raise InvalidArgumentError(
                f"dead_letter must not be shared, got {quoted(dead)}, which holds the dead letters of"
                f" {quoted(other)}: messages of two tables may have the same id"
            )


def _check_fit(dead: TableContext, options: TableOptions, columns: Sequence[sa.Column[Any]]) -> None:
    for column, has, wanted in (
        ("id", dead.options.id_type, options.id_type),
        ("message", dead.options.payload, options.payload),
    ):
        if has != wanted:
            raise SchemaError(f"dead_letter: column {column!r} of {dead.name!r} must be {wanted}, got {has}")
    for column in (*columns, *user_columns(DEAD_COLUMNS)):
        if column.name in OWN_COLUMNS:
            continue
        if column.name not in dead.rows.c:
            raise SchemaError(
                f"dead_letter: {dead.name!r} has no column {quoted(column.name)}. Add the column, or name another table"
            )
        has, wanted = _kind(dead.rows.c[column.name].type), _kind(column.type)
        if has != wanted:
            raise SchemaError(
                f"dead_letter: column {quoted(column.name)} of {dead.name!r} must hold {wanted}, got {has}"
            )


def _kind(column_type: Any) -> str:
    """Return the kind of values of a column; databases without booleans store them as numbers."""
    try:
        python_type = column_type.python_type
    except NotImplementedError:
        return type(column_type).__name__
    if issubclass(python_type, Number):
        return "numbers"
    return "texts" if issubclass(python_type, str | UUID) else python_type.__name__


def days_of(dialect: TableDialect, name: str, options: TableOptions) -> Days | None:
    """Return the day partitions of a table; raise InvalidArgumentError if it cannot have them."""
    if options.purge_by != "partition":
        return None
    if dialect.days is None:
        raise InvalidArgumentError("purge_by must be 'rows' on SQLite, which has no partitions, got 'partition'")
    if len(name) > LONGEST_NAME:
        raise InvalidArgumentError(
            f"name must have at most {LONGEST_NAME} characters for a table with partitions, because the names of"
            f" partitions begin with the table's name, got {quoted(name)}"
        )
    return dialect.days
