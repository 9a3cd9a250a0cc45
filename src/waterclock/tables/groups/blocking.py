"""Finds groups that are blocked because a message has used up its attempts (``on_exhausted="block"``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import NAMED_AT_ONCE, pieces
from waterclock.tables.groups.group_state import UNGROUPED
from waterclock.tables.groups.routing import group_of
from waterclock.tables.model.row_conditions import is_expired, is_waiting

GOES_ON, IS_EXHAUSTED, IS_BLOCKED = 0, 1, 2  # the result of `standing`


def exhausted_places(rows: sa.FromClause, most: int, now: Any) -> sa.Select[str, int]:
    """Select each blocked group, as ``name``, with the ``place`` of its first exhausted message."""
    free = rows.c.claim_id.is_(None) | (rows.c.time_next <= now)
    waits = is_waiting(rows) & free & rows.c.ack_held_at.is_(None) & ~is_expired(rows, now)
    exhausted = waits & (rows.c.epoch >= most) & rows.c.position.is_not(None)
    name = group_of(rows)
    return sa.select(name.label("name"), sa.func.min(rows.c.position).label("place")).where(exhausted).group_by(name)


def standing(position: sa.ColumnElement[int], place: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Compare a message's position in its group with the ``place`` of the exhausted one; NULL if the group has none."""
    ahead = place.is_(None) | (position < place)  # a message without a position is new, and goes to the end
    return sa.case((ahead, GOES_ON), (position == place, IS_EXHAUSTED), else_=IS_BLOCKED)


def places_of(
    context: TableContext, connection: sa.Connection, names: Iterable[str | None], now: int
) -> dict[str, int]:
    """Return the position of the exhausted message of each of these groups that is blocked."""
    if context.options.blocking_attempts is None:
        return {}
    every = sorted({name or UNGROUPED for name in names})
    found: dict[str, int] = {}
    for some in pieces(every, NAMED_AT_ONCE):
        asked = connection.execute(_places_of_groups(context), {"names": list(some), "now": now})
        found |= {row.name: row.place for row in asked}
    return found


@built_once(maxsize=256)
def _places_of_groups(context: TableContext) -> sa.Select[str, int]:
    most = context.options.blocking_attempts
    assert most is not None  # noqa: S101  # else no group stands still
    now = sa.bindparam("now", type_=sa.BigInteger)
    return exhausted_places(context.rows, most, now).where(context.sql.any_of(context.rows.c.group_id, "names"))
