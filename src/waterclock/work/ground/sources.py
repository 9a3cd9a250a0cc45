"""What a worker takes messages of: tables, each with its handler, in one database or in several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.keyspace import check_unsharded
from waterclock.tables.sharding.sharded_table import ShardedTable, TablePart
from waterclock.work.ground.handlers import Handlers, is_factory

AnyTable = MessageTable | ShardedTable


class MessageSource:
    """A table that a worker takes messages of, in one database.

    Attributes
    ----------
    name, handler
        The table's, and what handles its messages.
    url
        Its database.
    """

    def __init__(self, table: MessageTable | TablePart, name: str, handler: Any) -> None:
        self._table = table
        self.name = name
        self.handler = handler
        if isinstance(table, TablePart):
            self.url = table.url
        else:
            self.url = table.context.backend.url.render_as_string(hide_password=False)

    @property
    def is_shard(self) -> bool:
        """Whether others of the table's databases may be there where this one is away."""
        return isinstance(self._table, TablePart)

    def open(self) -> MessageTable:
        """Open it; UnavailableError where its shard is away, or was found so lately."""
        return self._table.open() if isinstance(self._table, TablePart) else self._table


def sources_of(table: AnyTable, handler: Any, shard: str | None, key_range: str | None) -> list[MessageSource]:
    """Give the tables of databases that a table is: one, or those of its shards in the part that is wanted."""
    if isinstance(table, ShardedTable):
        return [MessageSource(part, table.name, handler) for part in table.parts(shard, key_range)]
    check_unsharded(table.name, table.options.key_range, shard, key_range)
    return [MessageSource(table, table.name, handler)]


def tables_of(table: Any, handler: Any) -> list[tuple[AnyTable, Any]]:
    """Check what a worker was given, and give each table with its handler.

    Raises
    ------
    InvalidArgumentError
        For what is no message table, and for a table without a handler.
    """
    given = dict(table) if isinstance(table, Mapping) else {table: handler}
    if isinstance(table, Mapping) and handler is not None:
        raise InvalidArgumentError("handler: each table has one of its own, so give none beside them")
    if not given:
        raise InvalidArgumentError("table: there is none; give one")
    for each, its_handler in given.items():
        if not isinstance(each, AnyTable):
            raise InvalidArgumentError(f"table: {quoted(each)} is no message table")
        if its_handler is None:
            raise InvalidArgumentError(f"handler: table {each.name!r} has none; give a function")
        if not is_factory(its_handler):
            Handlers(its_handler)
    return list(given.items())
