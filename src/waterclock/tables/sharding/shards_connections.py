"""Finds the shard of a caller's connection, because a transaction cannot span several databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.options import TableOptions
from waterclock.tables.sharding.shard import Shard


def home_of(connection: Any, shards: Iterable[Shard], open_table: Callable[[Shard], MessageTable]) -> Shard:
    """Find the shard of a connection by the table's row in the catalogue, whatever the host is called.

    Raises `InvalidArgumentError` if it is to none of them.
    """
    for shard in shards:
        if not _may_be_of(connection, shard):
            continue
        context = open_table(shard).context
        with CallerConnections(context.backend).use(connection) as theirs:
            if not sa.inspect(theirs).has_table(message_tables.name):
                continue
            found = _identity(theirs, context.name)
        with context.backend.snapshot() as ours:
            if found is not None and found == _identity(ours, context.name):
                return shard
    raise InvalidArgumentError(
        f"connection must be to a shard of this table, got {quoted(connection)}. Begin the transaction on the shard of"
        " the message: db.shard(name).backend.engine"
    )


def _identity(connection: sa.Connection, name: str) -> tuple[object, ...] | None:
    row = connection.execute(sa.select(message_tables).where(message_tables.c.name == name)).first()
    if row is None:
        return None
    return row.table_id, row.time_created, TableOptions.from_json(name, row.options).key_range


def _may_be_of(connection: Any, shard: Shard) -> bool:
    # Asking a connection of another driver would fail, and might end its transaction.
    engine = shard.backend.engine
    session = getattr(connection, "connection", None)
    if callable(session):
        connection = session()
    if isinstance(connection, sa.Connection):
        return connection.dialect.name == engine.dialect.name
    driver = engine.dialect.loaded_dbapi.__name__.partition(".")[0]
    return any(kind.__module__.partition(".")[0] == driver for kind in type(connection).__mro__)
