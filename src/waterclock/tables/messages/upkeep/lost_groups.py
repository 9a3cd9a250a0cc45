"""Finds groups that have messages but no row, because plain SQL deleted it, and adds their rows.

No claim reaches the messages of such a group, and no check of the other groups sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import these_groups
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.model.claims.bounds import UNASSIGNED

_ONE = sa.literal_column("1")


class LostGroups(NamedTuple):
    """The result of a search for some groups with messages."""

    last: str | None  # the last group that was looked at if there may be more
    owners: dict[str, str]  # the groups without a row, each with its owner: the consumer that has its messages


def find_lost(context: TableContext, connection: SqlConnection, after: str | None, most: int) -> LostGroups:
    """Look at up to ``most`` groups with messages, behind the group ``after``; None: from the first. Reads only."""
    found = connection.execute(_looking(context, begins=after is None), {"after": after, "count": most}).all()
    lost = {row.name: row.owner or UNASSIGNED for row in found if row.is_lost}
    return LostGroups(found[-1].name if len(found) == most else None, lost)


def add_lost(context: TableContext, connection: SqlConnection, owners: Mapping[str, str]) -> None:
    """Add the rows of groups, without their values, unless another transaction routes messages or has added them."""
    if not (context.sql.one_writer or try_turn(context, connection)):
        return
    known = set(connection.scalars(_known(context), {"groups": sorted(owners)}))
    missing = sorted(owners.keys() - known)
    fixed = {"table_id": context.table_id, "tail": 0, "priority": 0}
    if new := [{**fixed, "group_id": name, "assigned": owners[name]} for name in missing]:
        connection.execute(sa.insert(groups), new)


@built_once(maxsize=256)
def _known(context: TableContext) -> sa.Select[Any]:
    return sa.select(groups.c.group_id).where(these_groups(context))


@built_once(maxsize=256)
def _looking(context: TableContext, *, begins: bool) -> sa.Select[Any, Any, Any]:
    """Select ``count`` groups with messages behind the one bound as ``after``: name, whether it is lost, and owner."""
    rows, names = context.rows, (_distinct if context.sql.begins_at_constants else _steps)(context, begins=begins)
    key = groups.c.table_id, groups.c.group_id
    row = context.sql.look_up(sa.select(groups.c.group_id), context.table_id, key, names.c.name).scalar_subquery()
    its = rows.c.group_id == names.c.name, rows.c.time_acked.is_(None), rows.c.position.is_not(None)

    def first_of_lost(value: Any, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        found = sa.select(value).where(*its, *conditions).order_by(rows.c.position).limit(_ONE)
        return sa.case((row.is_(None), found.correlate(names).scalar_subquery()), else_=sa.null())

    owned = context.options.groups == "exclusive"
    owner = first_of_lost(rows.c.consumer, rows.c.claim_id.is_not(None)) if owned else sa.literal_column("''")
    is_lost = first_of_lost(rows.c.seq).is_not(None)
    return sa.select(names.c.name, is_lost.label("is_lost"), owner.label("owner")).where(names.c.name.is_not(None))


def _distinct(context: TableContext, *, begins: bool) -> sa.Subquery:
    """Select names on MariaDB, which jumps from name to name in the index.

    With a condition on ``time_acked`` it would read all messages of each group.
    """
    name = context.rows.c.group_id
    its = sa.true() if begins else name > sa.bindparam("after", type_=name.type)
    found = sa.select(name.label("name")).distinct().where(name.is_not(None), its).order_by(name)
    return found.limit(sa.bindparam("count", type_=sa.Integer)).subquery("names")


def _steps(context: TableContext, *, begins: bool) -> sa.CTE:
    """Select names by a search for each, in the order of `TableDialect.some_names`: those of rows, and lost ones.

    A search for a message ends at the next row, because an old snapshot may show the index entries of very many
    finished messages.
    """
    downward = context.sql.is_bounded

    def next_of(table: Any, its: sa.ColumnElement[bool], cursor: Any, until: Any = None) -> sa.ScalarSelect[str]:
        name = table.c.group_id
        found = sa.select(name).where(its, name.is_not(None))
        for bound, is_above in ((cursor, not downward), (until, downward)):
            if bound is not None:
                found = found.where(name > bound if is_above else name < bound)
        return found.order_by(name.desc() if downward else name).limit(_ONE).correlate_except(table).scalar_subquery()

    def next_name(cursor: Any) -> sa.ColumnElement[str]:
        row, message = groups.alias("row"), context.rows.alias("one")
        following = next_of(row, context.sql.of_table(row.c.table_id, context.table_id), cursor)
        unacked = message.c.time_acked.is_(None)
        return sa.func.coalesce(
            next_of(message, unacked, cursor, following), following, next_of(message, unacked, cursor)
        )

    after = None if begins else sa.bindparam("after", type_=context.rows.c.group_id.type)
    names = sa.select(next_name(after).label("name"), _ONE.label("nth")).cte("names", recursive=True)
    further = sa.select(next_name(names.c.name), names.c.nth + _ONE)
    count = sa.bindparam("count", type_=sa.Integer)
    return names.union_all(further.where(names.c.name.is_not(None), names.c.nth < count))
