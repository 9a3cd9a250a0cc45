"""Statements as one would write them, for SQLite and MariaDB, whose planners need no help with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa


class _AnyOf(Protocol):
    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]: ...


class PlainStatements:
    """Parts of statements; `TableDialect` says what each is for."""

    def any_key(
        self: _AnyOf, table: sa.Table, value: int, columns: tuple[sa.Column[Any], sa.Column[Any]], name: str
    ) -> sa.ColumnElement[bool]:
        """Say that a row's key is ``value`` with one of the values in the list bound as ``name``."""
        del table  # the columns know it
        return (columns[0] == value) & self.any_of(columns[1], name)

    def lock_keys(
        self: _AnyOf,
        table: sa.Table,
        value: int,
        columns: tuple[sa.Column[Any], sa.Column[Any]],
        name: str,
        *,
        skip_locked: bool = False,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select and lock rows in the order of their keys."""
        chosen = sa.select(table).where(columns[0] == value, self.any_of(columns[1], name))
        return chosen.order_by(columns[1]).with_for_update(skip_locked=skip_locked)

    def key_is(self, key: sa.Column[int], value: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Say that a row's key is a value."""
        return key == value

    def of_each(
        self,
        parents: sa.Table,
        columns: Sequence[sa.Column[Any]],
        belongs: sa.ColumnElement[bool],
        order: sa.Column[int],
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select rows that belong to rows of ``parents``."""
        del order  # the index has it
        return sa.select(*columns).join_from(parents, columns[0].table, belongs)

    def run_both(
        self, connection: sa.Connection, one: sa.Update, another: sa.Update | sa.Delete, values: Mapping[str, Any]
    ) -> int:
        """Run two statements, and return the second's row count."""
        connection.execute(one, values)
        return connection.execute(another, values).rowcount
