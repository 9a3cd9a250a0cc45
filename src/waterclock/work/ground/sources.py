"""The sources of a worker's messages: tables in one or several databases, each with its handler."""

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
    """A table in one database from which a worker takes messages."""

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
        """Return whether other databases of the table may be available when this one is not."""
        return isinstance(self._table, TablePart)

    def open(self) -> MessageTable:
        """Open it; UnavailableError if its shard is unavailable, or was recently."""
        return self._table.open() if isinstance(self._table, TablePart) else self._table


def sources_of(table: AnyTable, handler: Any, shard: str | None, key_range: str | None) -> list[MessageSource]:
    """Return a table's sources: one, or one for each of its shards in the requested part."""
    if isinstance(table, ShardedTable):
        return [MessageSource(part, table.name, handler) for part in table.parts(shard, key_range)]
    check_unsharded(table.name, table.options.key_range, shard, key_range)
    return [MessageSource(table, table.name, handler)]


def tables_of(table: Any, handler: Any) -> list[tuple[AnyTable, Any]]:
    """Validate a worker's arguments, and return each table with its handler.

    Raises `InvalidArgumentError` for an object that is not a message table, and for a table without a handler.
    """
    given = dict(table) if isinstance(table, Mapping) else {table: handler}
    if isinstance(table, Mapping) and handler is not None:
        raise InvalidArgumentError("handler must be omitted, because each table has its own handler")
    if not given:
        raise InvalidArgumentError("table is missing; pass at least one table")
    for each, its_handler in given.items():
        if not isinstance(each, AnyTable):
            raise InvalidArgumentError(f"table must be a message table, got {quoted(each)}")
        if its_handler is None:
            raise InvalidArgumentError(f"handler is missing for table {each.name!r}. Pass a function")
        if not is_factory(its_handler):
            Handlers(its_handler)
    return list(given.items())
