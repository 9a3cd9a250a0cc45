"""Inserts many rows with one statement on MariaDB, and skips rows whose id already exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.per_database_cache import built_once
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.inserting import NewRows, parameter_name

_DUPLICATE = 1062
# The driver splits statements longer than about a million bytes, and one part could fail alone. A character has at most
# four bytes, and may be escaped.
_CHARACTERS_OF_A_STATEMENT = 100_000
_ROWS_OF_A_STATEMENT = 1000


def insert_new(connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]) -> set[Any]:
    """Insert messages with new ids, and return those ids.

    Neither IGNORE nor ON DUPLICATE KEY UPDATE returns exactly the new ones, and IGNORE also changes values that do not
    fit. So existing ids are left out. If an insert finds an id that was put meanwhile, it checks again.
    """
    inserted: set[Any] = set()
    for messages in _statements(new, now):
        # No other writer can have chosen fresh ids.
        known: set[Any] = set() if new.fresh else _known(connection, rows, messages)
        inserted |= _insert(connection, rows, messages, known)
    return inserted


def _insert(
    connection: SqlConnection, rows: sa.Table, messages: dict[Any, dict[str, Any]], known: set[Any]
) -> set[Any]:
    while unknown := {message_id: message for message_id, message in messages.items() if message_id not in known}:
        try:
            names = tuple(next(iter(unknown.values())))
            text = _insert_text(rows, names, alike(connection.dialect))
            given = [{parameter_name(name): value for name, value in one.items()} for one in unknown.values()]
            if connection.dialect.positional:  # asyncmy
                connection.exec_driver_sql(text, [tuple(one.values()) for one in given])
            else:
                connection.exec_driver_sql(text, given)
        except exc.IntegrityError as error:
            if error.orig is None or error.orig.args[0] != _DUPLICATE:
                raise
            found = _known(connection, rows, unknown) & unknown.keys()
            if not found:  # another unique column has the value, or this column has an equal one by its collation
                raise
            known |= found
        else:
            break
    return set(unknown)


def _known(connection: SqlConnection, rows: sa.Table, messages: dict[Any, dict[str, Any]]) -> set[Any]:
    # A locking read sees all commits, even if the caller's transaction has an older snapshot.
    statement = _looking_up(rows)
    return set(connection.scalars(statement, {"ids": sorted(messages)}))


@built_once(maxsize=256)
def _looking_up(rows: sa.Table) -> sa.Select[Any]:
    # The ids are in the driver's form, to be compared as they were sent.
    bare = sa.table(rows.name, sa.column("id"))
    return sa.select(bare.c.id).where(bare.c.id.in_(sa.bindparam("ids", expanding=True))).with_for_update(read=True)


@built_once(maxsize=256)
def _insert_text(rows: sa.Table, names: tuple[str, ...], dialect: sa.Dialect) -> str:
    # The driver joins rows into one statement only if all values are placeholders.
    insert = sa.insert(sa.table(rows.name, *map(sa.column, names)))
    return str(insert.values({name: sa.bindparam(parameter_name(name)) for name in names}).compile(dialect=dialect))


def _statements(new: NewRows, now: sa.ColumnElement[int]) -> Iterator[dict[Any, dict[str, Any]]]:
    """Split messages into statements: rows by id, the first one of a repeated id."""
    # If the database's clock is used, its triggers and defaults read it.
    time = now.effective_value if isinstance(now, sa.BindParameter) else None
    names = tuple(new.columns)
    some: dict[Any, dict[str, Any]] = {}
    characters = 0
    for values in new.tuples(names):
        message = dict(zip(names, values, strict=True))
        at = message.pop("at", None)
        message["time_scheduled"] = message["time_next"] = time if at is None else at
        if time is not None:
            message["time_created"] = time
        size = sum(len(value) for value in values if isinstance(value, str | bytes))
        if some and (characters + size > _CHARACTERS_OF_A_STATEMENT or len(some) == _ROWS_OF_A_STATEMENT):
            yield some
            some, characters = {}, 0
        some.setdefault(message["id"], message)
        characters += size
    yield some
