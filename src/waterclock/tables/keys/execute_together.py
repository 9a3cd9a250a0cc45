"""Runs searches for several keys in few round trips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.visitors import replacement_traverse

from waterclock.database.driver_fast_path import execute_all
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext

_MOST_BRANCHES = 16

Search = tuple[sa.Select[*tuple[Any, ...]], Mapping[str, Any]]


def execute_together(
    context: TableContext, connection: SqlConnection, searches: Sequence[Search]
) -> list[Sequence[Any]]:
    """Run searches one after the other, and return the rows of each.

    If each statement costs a round trip, one UNION runs a search for up to 16 keys. A join with a list of keys would
    not do: the server begins at a lower bound only if that is a constant.
    """
    if not context.sql.waits_for_each:
        return [found.all() for found in execute_all(connection, searches)]
    found: list[Sequence[Any]] = []
    for statement, same in groupby(searches, key=itemgetter(0)):
        each = [values for _, values in same]
        while each:
            count = min(_MOST_BRANCHES, 1 << len(each).bit_length() - 1)  # a power of two, so few texts are compiled
            found += _execute_united(connection, statement, each[:count])
            each = each[count:]
    return found


def _execute_united(
    connection: SqlConnection, statement: sa.Select[*tuple[Any, ...]], each: Sequence[Mapping[str, Any]]
) -> list[Sequence[Any]]:
    if len(each) == 1:
        return [connection.execute(statement, each[0]).all()]
    values = {f"{name}_{nth}": value for nth, its in enumerate(each) for name, value in its.items()}
    rows: list[list[Any]] = [[] for _ in each]
    for row in connection.execute(_united(statement, len(each)), values):
        rows[row.waterclock_nth].append(row)
    return [*rows]


@built_once(maxsize=256)
def _united(statement: sa.Select[*tuple[Any, ...]], count: int) -> sa.CompoundSelect[*tuple[Any, ...]]:
    # In parentheses, because each branch may lock rows.
    branches: list[Any] = [_branch(statement, nth).self_group() for nth in range(count)]
    return sa.union_all(*branches)


def _branch(statement: sa.Select[*tuple[Any, ...]], nth: int) -> sa.Select[*tuple[Any, ...]]:
    def renamed(element: Any, **_: Any) -> Any:
        if isinstance(element, sa.BindParameter) and element.required:
            return sa.bindparam(f"{element.key}_{nth}", type_=element.type)
        return None

    own: Any = replacement_traverse(statement, {}, renamed)
    return own.add_columns(sa.literal_column(str(nth), sa.Integer).label("waterclock_nth"))
