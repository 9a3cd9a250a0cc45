"""Locks rows of keys in an order, and skips those that other processes have locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.driver_fast_path import execute_all
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import adapted
from waterclock.tables.keys.turn_levels import by_index


class LockingSearch(NamedTuple):
    """The statements of a search.

    If ``first`` finds rows without locks, and then locks them by their keys (`TableDialect.locks_by_key`), ``behind``
    locks the rows that it passes, from the values of the columns ``order`` on.
    """

    first: sa.Select[*tuple[Any, ...]]
    behind: sa.Select[*tuple[Any, ...]] | None = None
    order: tuple[str, ...] = ()


def locking_search(
    context: TableContext, found: sa.Select[*tuple[Any, ...]], *order: sa.Column[int], index: str
) -> LockingSearch:
    """Return the statements that lock the rows of ``found`` in this order, which is that of an index."""
    found = found.order_by(*order)
    if not context.sql.locks_by_key:
        return LockingSearch(found.with_for_update(skip_locked=True))
    its = message_keys.c
    # No index has all of these. Only then does the server check the end of the range before it looks up a row.
    same = its.table_id, its.message_key, its.level, its.is_due, its.turn, its.due_at
    unlocked = message_keys.alias("unlocked")
    hint = by_index(index)
    seen = adapted(unlocked, message_keys)(found.with_only_columns(*same, maintain_column_froms=True))
    seen = seen.with_hint(unlocked, hint).subquery("seen")
    is_same = sa.and_(*(column == seen.c[column.name] for column in same))
    places = {f"seen_{column.name}": column for column in order}
    by_key = (
        sa.select(*found.selected_columns, *(seen.c[column.name].label(name) for name, column in places.items()))
        # Only an outer join makes the server begin with the rows that were found.
        .select_from(sa.outerjoin(seen, message_keys, is_same))
        .with_hint(message_keys, "FORCE INDEX (PRIMARY)")
        .with_for_update(skip_locked=True)
    )
    *before, (last, column) = places.items()
    behind = column >= sa.bindparam(last, type_=sa.BigInteger)
    for name, column in reversed(before):
        value = sa.bindparam(name, type_=sa.BigInteger)
        behind = (column > value) | ((column == value) & behind)
    locking = found.where(behind).with_hint(message_keys, hint).with_for_update(skip_locked=True)
    return LockingSearch(by_key, locking, tuple(places))


def lock_found(connection: SqlConnection, searches: Sequence[LockingSearch], values: Mapping[str, Any]) -> list[Any]:
    """Lock the rows of each search, and return them in order.

    If other processes have locked or moved some of the rows that a search without locks found, a search that locks
    finds those behind them. It begins at the first row that was found, so it locks no dead entries before that.
    """
    found: list[Any] = []
    results = execute_all(connection, [(one.first, values) for one in searches])
    for search, result in zip(searches, results, strict=True):
        rows = list(result)
        if search.behind is not None:
            rows.sort(key=attrgetter(*search.order))
            if any(row.level is None for row in rows):
                start = {name: getattr(rows[0], name) for name in search.order}
                rows = list(connection.execute(search.behind, {**values, **start}))
        found += rows
    return found
