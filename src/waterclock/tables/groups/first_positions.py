"""Finds the first messages of groups without reading the index entries of acked messages.

MariaDB begins a search at a lower bound only if the bound is a constant. Otherwise MariaDB reads all index entries of a
group, including the entries of acked messages, which remain while a transaction holds an old snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext

SEARCHED_AT_ONCE = 256
"""Groups of one statement: it has a search of its own for each."""


def first_in_group(
    context: TableContext, count: int, condition: str = "", *, value: str = "position", last: bool = False
) -> sa.ColumnElement[int]:
    """Return the position of the first unacked message of a group, for ``count`` groups of `first_values`.

    ``condition`` limits the messages, ``value`` names another column, and with ``last`` it is the last message.
    """
    preparer = context.backend.engine.dialect.identifier_preparer
    by = preparer.quote(f"{context.name}_group_idx")
    rows, names = preparer.quote(context.name), preparer.format_column(groups.c.group_id, use_table=True)
    order = "position DESC" if last else "position"
    searches = (
        f"WHEN :group_{place} THEN (SELECT {value} FROM {rows} FORCE INDEX ({by}) WHERE group_id = :group_{place}"  # noqa: S608  # our names
        f" AND position >= :start_{place} AND time_acked IS NULL{condition} ORDER BY {order} LIMIT 1)"
        for place in range(count)
    )
    return sa.type_coerce(sa.func.coalesce(sa.text(f"CASE {names} {' '.join(searches)} END")), sa.BigInteger)


def given_position(count: int) -> sa.ColumnElement[int]:
    """Return the position that a group has in `first_values`, for ``count`` groups."""
    names = (sa.bindparam(f"group_{place}", type_=groups.c.group_id.type) for place in range(count))
    positions = (sa.bindparam(f"start_{place}", type_=sa.BigInteger) for place in range(count))
    return sa.case(*((groups.c.group_id == name, position) for name, position in zip(names, positions, strict=True)))


def searches_for(groups: int) -> int:
    """Return for how many groups the statement is built: for a quarter more at most, so that few are compiled."""
    step = 1 << max(0, (groups - 1).bit_length() - 3)
    return -(-groups // step) * step


def within_places(rows: sa.Table, count: int) -> sa.ColumnElement[bool]:
    """Return the condition that a message lies between the positions of its group, for so many of `first_values`."""
    places: list[sa.ColumnElement[bool]] = []
    for place in range(count):
        group = sa.bindparam(f"group_{place}", type_=rows.c.group_id.type)
        start, end = (sa.bindparam(f"{name}_{place}", type_=sa.BigInteger) for name in ("start", "end"))
        places.append(sa.and_(rows.c.group_id == group, rows.c.position >= start, rows.c.position < end))
    return sa.or_(*places)


def first_values(starts: Mapping[str, int], ends: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the parameters of `first_in_group`: the position of each group from which to search.

    ``ends`` are those before which to search, for `within_places`.
    """
    values: dict[str, Any] = {}
    every = [*starts.items()]
    for place in range(searches_for(len(every))):
        name, start = every[min(place, len(every) - 1)]  # the last one is repeated, which searches nothing again
        values |= {f"group_{place}": name, f"start_{place}": start}
        if ends is not None:
            values[f"end_{place}"] = ends[name]
    return values
