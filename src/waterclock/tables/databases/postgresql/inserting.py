"""Inserts rows on PostgreSQL with one statement in one round trip, and skips rows whose id already exists."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql

from waterclock.database.driver_fast_path import DirectConnection
from waterclock.database.per_database_cache import built_once
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.inserting import NewRows, parameter_name
from waterclock.tables.model.column_types import Text
from waterclock.tables.model.schema import PARTITIONED
from waterclock.tables.model.values.reflected_types import DomainArray, NamedType

_SENT_IN_BINARY = (sa.Integer, sa.LargeBinary, sa.String, Text)  # twice as fast as text
UNIQUE_VIOLATION = "23505"

_Text = tuple[str, dict[str, Any], tuple[str, ...] | None]


def insert_fresh(connection: DirectConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]) -> bool:
    """Insert messages whose ids can exist only if an earlier try succeeded and its answer was lost.

    Without ON CONFLICT, which inserts every index entry twice, first speculatively. Returns False if an id existed:
    then nothing was inserted.
    """
    many = new.count > 1
    text, parameters, _ = (_many if many else _single)(rows, tuple(new.columns), now, connection.dialect, look=False)
    values = _in_arrays(rows, new) if many else {name: column[0] for name, column in new.parameters.items()}
    try:
        connection.exec_driver_sql(text, parameters | values | _clock(now))
    except exc.IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != UNIQUE_VIOLATION:
            raise
        return False
    return True


def insert_unknown(connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]) -> set[Any]:
    """Insert messages with new ids, and return those ids."""
    text, parameters, places = _many(rows, tuple(new.columns), now, alike(connection.dialect), look=True)
    values = parameters | _in_arrays(rows, new) | _clock(now)
    given = values if places is None else tuple([values[name] for name in places])
    return {row[0] for row in connection.exec_driver_sql(text, given)}


def _in_arrays(rows: sa.Table, new: NewRows) -> dict[str, list[Any]]:
    """Return the parameters of `_many`. Values that are arrays are texts, because UNNEST would flatten them."""
    values = new.parameters
    for name in _text_columns(rows, tuple(new.columns)):
        key = parameter_name(name)
        values[key] = [value if value is None or type(value) is str else _array_text(value) for value in values[key]]
    return values


@built_once(maxsize=256)
def _text_columns(rows: sa.Table, names: tuple[str, ...]) -> list[str]:
    types = _types(rows, names)
    kinds = {name: getattr(types[name], "kind", None) for name in names}
    # The type of a domain has that of its values.
    as_text = sa.ARRAY, DomainArray, NamedType
    return [name for name, kind in kinds.items() if isinstance(getattr(kind, "data_type", kind), as_text)]


def _array_text(value: Any) -> str:
    """Return an array, or an element of one, in PostgreSQL's text form."""
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return f"{{{','.join(map(_array_text, value))}}}"
    content = getattr(value, "obj", value)  # the driver wraps bytes and JSON
    if isinstance(content, bytes | bytearray | memoryview):
        text = f"\\x{content.hex()}"
    else:
        text = str(value) if content is value else json.dumps(content)
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _clock(now: sa.ColumnElement[int]) -> dict[str, Any]:
    return {now.key: now.effective_value} if isinstance(now, sa.BindParameter) else {}


@built_once(maxsize=256)
def _many(
    rows: sa.Table, names: tuple[str, ...], now: sa.ColumnElement[int], dialect: sa.Dialect, *, look: bool
) -> _Text:
    """Build the insert of these columns, each as an array.

    Returns the statement in the driver's form, the values of its constants, and the names in order for a driver with
    positional parameters; None: named parameters.
    """
    own = _types(rows, names)
    as_text = _text_columns(rows, names)
    types = own | dict.fromkeys(as_text, sa.Text())
    arrays = [sa.bindparam(parameter_name(name), type_=postgresql.ARRAY(types[name])) for name in names]
    new = sa.func.unnest(*arrays).table_valued(*(sa.column(name, types[name]) for name in names)).render_derived("new")
    given: dict[str, sa.ColumnElement[Any]] = {
        name: sa.cast(new.c[name], own[name]) if name in as_text else new.c[name] for name in names
    }
    values = _values(given, now)
    insert = postgresql.insert(rows).from_select(list(values), sa.select(*values.values()))
    if look:
        # Ids are unique in each partition, so the table has no key that ON CONFLICT could name.
        key = None if rows.info.get(PARTITIONED) else [rows.c.id]
        insert = insert.on_conflict_do_nothing(index_elements=key).returning(rows.c.id)
    return _text(insert, types, dialect)


@built_once(maxsize=256)
def _single(
    rows: sa.Table, names: tuple[str, ...], now: sa.ColumnElement[int], dialect: sa.Dialect, *, look: bool
) -> _Text:
    """Build the insert of one message: arrays of one element take a third longer."""
    del look
    types = _types(rows, names)
    values = _values({name: sa.bindparam(parameter_name(name), type_=types[name]) for name in names}, now)
    return _text(sa.insert(sa.table(rows.name, *map(sa.column, values))).values(values), types, dialect)


def _types(rows: sa.Table, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: sa.BigInteger() if name == "at" else rows.c[name].type for name in names}


def _values(given: dict[str, sa.ColumnElement[Any]], now: sa.ColumnElement[int]) -> dict[str, sa.ColumnElement[Any]]:
    values = {name: value for name, value in given.items() if name != "at"}
    at = sa.func.coalesce(given["at"], now) if "at" in given else now
    return values | {"time_created": now, "time_scheduled": at, "time_next": at}


def _text(insert: sa.Insert, types: dict[str, Any], dialect: sa.Dialect) -> _Text:
    compiled: Any = insert.compile(dialect=dialect)
    text = str(compiled)
    for name, column_type in types.items():
        if isinstance(column_type, _SENT_IN_BINARY):
            text = text.replace(f"%({parameter_name(name)})s", f"%({parameter_name(name)})b")
    places = tuple(compiled.positiontup or ()) if compiled.positional else None
    return text, dict(compiled.params), places
