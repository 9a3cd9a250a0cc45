"""Finds blocked groups on MariaDB. Such groups never become due by themselves.

MariaDB has no partial indexes, and one query for all blocked groups would read the whole index of due groups. That
index begins with owner and priority. So the existing owners and priorities are looked up first, each with one index
lookup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.databases.claiming_rows import BELOW_EVERY_PRIORITY

MOST_LEVELS = 64
"""Maximum pairs of an owner and a priority to search: each costs two seeks. Groups of other pairs are not found."""

_OWNER = sa.select(groups.c.assigned).order_by(groups.c.assigned).limit(1)
_FIRST = _OWNER.where(groups.c.assigned >= sa.literal(""))
_NEXT = _OWNER.where(groups.c.assigned > sa.bindparam("owner"))
_PRIORITY = (
    sa.select(groups.c.priority)
    .where(
        groups.c.assigned == sa.bindparam("owner"),
        groups.c.table_id == sa.bindparam("table_id"),
        groups.c.priority > sa.bindparam("above", type_=sa.BigInteger),
    )
    .order_by(groups.c.priority)
    .limit(1)
)


def blocked_groups(connection: sa.Connection, table_id: int) -> sa.ColumnElement[bool]:
    """Return the condition of a table's groups that have messages and are never due by themselves."""
    levels = [
        (groups.c.assigned == owner) & (groups.c.priority == priority)
        for owner, priority in _levels(connection, table_id)
    ]
    its = (groups.c.table_id == table_id) & groups.c.ready_at.is_(None) & groups.c.head.is_not(None)
    return its & sa.or_(sa.false(), *levels)


def _levels(connection: sa.Connection, table_id: int) -> Iterator[tuple[str, int]]:
    seeks = 0
    owner = connection.execute(_FIRST).scalar()
    while owner is not None and seeks < MOST_LEVELS:
        above = BELOW_EVERY_PRIORITY
        while above is not None and seeks < MOST_LEVELS:
            values: dict[str, Any] = {"owner": owner, "table_id": table_id, "above": above}
            above = connection.execute(_PRIORITY, values).scalar()
            seeks += 1
            if above is not None:
                yield owner, above
        owner = connection.execute(_NEXT, {"owner": owner}).scalar()
