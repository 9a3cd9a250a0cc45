"""A message table as an entry of the catalogue: opened, altered, paused, dropped, and noticed when others do that."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Self, Unpack

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import message_tables
from waterclock.errors import RefusedError
from waterclock.tables.catalogue.adopting import adopt as adopt_table
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.creating import create, ensure_dead_letter_table
from waterclock.tables.catalogue.rate_limit import forget_rate
from waterclock.tables.catalogue.table_row import Entry, change, drop, load
from waterclock.tables.groups.heads import settle_exhausted
from waterclock.tables.messages.putting import user_column_names
from waterclock.tables.model.options import OptionChanges, TableOptions
from waterclock.time import MAX_NS, Time, to_time


class OpenTable:
    """A message table that is open, without what is done with its messages: that is `MessageTable`."""

    def __init__(self, context: TableContext) -> None:
        self._entry = Entry(context)
        self._callers = CallerConnections(context.backend)

    @property
    def _context(self) -> TableContext:
        return self._entry.last_seen

    @property
    def context(self) -> TableContext:
        """What the operations on the table need to know of it."""
        return self._context

    @property
    def name(self) -> str:
        """The table's name, also in SQL."""
        return self._context.name

    @property
    def options(self) -> TableOptions:
        """The table's options, durations in ns; another process's changes show after a second."""
        return self._entry.now().options

    @classmethod
    def create(
        cls,
        backend: Backend,
        name: str,
        options: TableOptions,
        columns: Mapping[str, object] | None = None,
        *,
        adopt: bool = False,
        exist_ok: bool = False,
    ) -> Self:
        """Make a message table; `Database.create_table` explains the options.

        Raises
        ------
        AlreadyExistsError
            Where the table exists and ``exist_ok`` is False, or where another SQL table has the name.
        NotFoundError, SchemaError
            Where there is no SQL table to adopt, or none that can be adopted as it is.
        InvalidArgumentError
            For a name or a further column that a table cannot have.
        """
        make = adopt_table if adopt else create
        make(backend, name, options.with_dead_letter(name), columns, exist_ok=exist_ok)
        return cls.open(backend, name)

    @classmethod
    def open(cls, backend: Backend, name: str) -> Self:
        """Open a message table.

        Raises
        ------
        NotFoundError
            Where there is none of this name.
        SchemaError
            Where its SQL table is gone or lacks a column, or its options are incomplete.
        """
        return cls(load(backend, name))

    def alter(self, **options: Unpack[OptionChanges]) -> None:
        """Change options; those that are not given stay. Subscribers carry on under them within a second.

        Raises
        ------
        InvalidArgumentError
            For an option that cannot be meant, or that cannot change once the table is there.
        SchemaError
            Where the dead-letter table is there and does not fit.
        """
        context = self._entry.read()
        changed = context.options.changed(options).with_dead_letter(self.name)

        def work(own: sa.Connection) -> None:
            further = [context.rows.c[name] for name in user_column_names(context.rows)]
            ensure_dead_letter_table(context.backend, own, self.name, changed, further)
            change(own, context.table_id, options=changed.to_json())
            if "rate_limit" in options:
                forget_rate(own, context.table_id)

        context.backend.transact(work)
        self._entry.read()
        if changed.groups and not {"max_attempts", "on_exhausted"}.isdisjoint(options):
            self._settle_exhausted()

    def _settle_exhausted(self) -> None:
        """Let groups go on whose first message had used up its attempts by the options as they were before."""
        context = self._context
        after: str | None = None
        while True:
            after = context.backend.transact(lambda own, after=after: settle_exhausted(context, own, after))
            if after is None:
                return

    def pause(self, until: Time | None = None) -> None:
        """Send nothing until then, or until `resume`; what is out already may be acked. Noticed within a second."""
        self._change(paused_until=MAX_NS if until is None else to_time(until, "until"))

    def resume(self) -> None:
        """End a pause."""
        self._change(paused_until=None)

    def drop(self) -> None:
        """Remove the table with its messages. Subscribers end with a NotFoundError within a second."""
        context = self._context
        context.backend.transact(lambda own: drop(context, own))

    def _change(self, **values: Any) -> None:
        context = self._context
        context.backend.transact(lambda own: change(own, context.table_id, **values))
        self._entry.read()

    @contextmanager
    def _loaded(self) -> Generator[TableContext]:
        """Give the table as it is now, and refuse to work on one that cannot be loaded any more."""
        try:
            yield self._entry.now()
        except RefusedError as error:
            self._entry.check(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def message_table_names(backend: Backend) -> list[str]:
    """Name every message table, in alphabetical order."""
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(message_tables.c.name).order_by(message_tables.c.name)))
