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
from waterclock.tables.keys.turn_tiers import by_index

_TRIED, _TRIED_AT_LEAST = 4, 20
"""How many keys a claim tries to lock for each one that it wants, if others have locked the next ones. If all of these
are locked, it tries ``_MORE`` times as many: a process that was stopped during its claim may hold a hundred locks."""
_MORE = 8


class _Further(NamedTuple):
    """The statements that find more rows: ``again`` locks those that are free, ``behind`` finds one that it misses."""

    again: sa.Select[*tuple[Any, ...]]
    behind: sa.Select[*tuple[Any, ...]]
    order: tuple[str, ...]


class LockingSearch(NamedTuple):
    """The statements of a search.

    If ``first`` finds rows without locks, and then locks them by their keys (`TableDialect.locks_by_key`), there are
    ``further`` ones.
    """

    first: sa.Select[*tuple[Any, ...]]
    further: _Further | None = None


def locking_search(
    context: TableContext, found: sa.Select[*tuple[Any, ...]], *order: sa.Column[int], index: str
) -> LockingSearch:
    """Return the statements that lock the first ``count`` rows of ``found`` in this order, that of an index."""
    found, count = found.order_by(*order), sa.bindparam("count", type_=sa.Integer)
    if not context.sql.locks_by_key:
        return LockingSearch(found.limit(count).with_for_update(skip_locked=True))
    its = message_keys.c
    # No index has all of these. Only then does the server check the end of the range before it looks up a row.
    same = its.table_id, its.message_key, its.level, its.is_due, its.tier, its.turn, its.due_at
    unlocked = message_keys.alias("unlocked")
    seen = adapted(unlocked, message_keys)(found.with_only_columns(*same, maintain_column_froms=True))
    seen = seen.with_hint(unlocked, by_index(index))

    def locked(seen: sa.Subquery, *, is_outer: bool) -> sa.Select[*tuple[Any, ...]]:
        is_same = sa.and_(*(column == seen.c[column.name] for column in same))
        places = [seen.c[column.name].label(f"seen_{column.name}") for column in order]
        by_key = sa.select(*found.selected_columns, *places)
        by_key = by_key.select_from(sa.join(seen, message_keys, is_same, isouter=is_outer))
        return by_key.with_hint(message_keys, "FORCE INDEX (PRIMARY)").with_for_update(skip_locked=True)

    # Only these joins make the server begin with the rows that were found.
    first = locked(seen.limit(count).subquery("seen"), is_outer=True)
    most = sa.bindparam("most", type_=sa.Integer)
    again = locked(seen.limit(most).subquery("seen"), is_outer=False).prefix_with("STRAIGHT_JOIN").limit(count)
    behind = seen.limit(sa.literal_column("1")).offset(most)
    return LockingSearch(first, _Further(again, behind, tuple(f"seen_{column.name}" for column in order)))


def lock_found(connection: SqlConnection, searches: Sequence[LockingSearch], values: Mapping[str, Any]) -> list[Any]:
    """Lock the rows of each search, and return them in order.

    If other processes have locked or moved some of the rows that a search without locks found, another one finds more.
    A search with locks would lock dead entries, and keep the locks of the rows that it passes.
    """
    found: list[Any] = []
    results = execute_all(connection, [(one.first, values) for one in searches])
    for search, result in zip(searches, results, strict=True):
        rows = list(result)
        if search.further is not None:
            if any(row.level is None for row in rows):
                rows = _lock_free(connection, search.further, values)
            rows.sort(key=attrgetter(*search.further.order))
        found += rows
    return found


def _lock_free(connection: SqlConnection, search: _Further, values: Mapping[str, Any]) -> list[Any]:
    """Lock the first free rows of a search, however many locked ones stand before them."""
    most = _TRIED * values["count"] + _TRIED_AT_LEAST
    while True:
        tried = {**values, "most": most}
        rows = list(connection.execute(search.again, tried))
        if len(rows) == values["count"] or connection.execute(search.behind, tried).first() is None:
            return rows
        most *= _MORE
