"""Putting messages, with a word for those that are too large for the database.

MariaDB hangs up on those, which looks like a server that restarts, and would be tried again for half a minute. Payloads
that are bytes or text are looked at before; the size of anything else is known only when it is written, and looked at
when a put failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.quoting import quoted
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.putting import PreparedRows, PutIds, put_rows

_ALWAYS_FITS = 65_536  # bytes
_SIZED = (str, bytes)


def put_sized(context: TableContext, connection: sa.Connection, prepared: PreparedRows) -> PutIds:
    """Put messages as `put_rows` does.

    Raises
    ------
    InvalidArgumentError
        Where a value is larger than the database takes; it names the column, the message, its size and the remedy.
    """
    for row in prepared.rows:
        payload = row["message"]
        if type(payload) in _SIZED and len(payload) > _ALWAYS_FITS:
            _check(context, row, ["message"])
    try:
        return put_rows(context, connection, prepared)
    except exc.DBAPIError as error:
        try:
            for row in prepared.rows:
                _check(context, row, row)
        except InvalidArgumentError as reason:
            if isinstance(connection, sa.Connection):  # pyright: ignore[reportUnnecessaryIsInstance]  # it may be a Direct
                connection.invalidate()  # the server has hung up, so there is nothing to roll back
            raise reason from error
        except UnavailableError:  # a database that is away says nothing of sizes
            pass
        raise


def _check(context: TableContext, row: Mapping[str, Any], columns: Iterable[str]) -> None:
    backend = context.backend
    for column in columns:
        value = json.dumps(row[column]) if type(row[column]) in (dict, list) else row[column]
        if type(value) not in _SIZED or len(value) <= _ALWAYS_FITS:
            continue
        if backend.dialect.size_in_statement(value) > backend.largest_value:
            name = "payload" if column == "message" else column
            which = "a message" if row["id"] is None else f"message {quoted(row['id'])}"
            size = len(value) if isinstance(value, bytes) else len(value.encode())
            raise InvalidArgumentError(
                f"{name}: that of {which} has {size} bytes, which is more than {backend.name} takes;"
                " put what is so large elsewhere and its address here, or raise the database's limit"
                " (max_allowed_packet on MariaDB and MySQL)"
            )
