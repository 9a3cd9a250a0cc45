"""Routing: giving messages that are new their places in their groups.

Enqueuing only inserts rows, so that a caller's long transaction never holds a group; consumers route them before they
claim. One consumer routes at a time, and leaves groups that are locked just now to the next one.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from waterclock.database.direct import Asked
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.table_catalogue import groups, message_tables
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import KEPT
from waterclock.tables.groups.heads import UNGROUPED, locking_free, settle, settling_kept, these_groups
from waterclock.tables.model.schema import not_acked

_ROUTED_AT_ONCE = 50_000
_AT_ONCE = 2_000
"""Numbers of messages that are routed without an answer in between: names are not kept of more groups."""

_LOWEST = -(2**31)


def route(context: TableContext, connection: SqlConnection) -> None:
    """Route messages where some are new."""
    if connection.execute(_any_unrouted(context)).first() is not None:
        route_new(context, connection)


def route_new(context: TableContext, connection: SqlConnection) -> bool:
    """Route the oldest messages that are new, and note what plain SQL changed in groups.

    Returns
    -------
    bool
        Whether there are more of them than one transaction should route.
    """
    if not list(connection.execute(_turn(), {"table": context.table_id})):
        return False
    after = 0
    passed: set[str] = set()
    while True:
        # What is committed meanwhile with a seq in between does no harm: places are given in one statement.
        [(count, first, upto)] = connection.execute(_window(context), {"after": after})
        after = (first or 1) - 1  # from the first one on, else a planner that knows little reads all before it
        if count == 0:
            return False
        routed = _route_window(context, connection, after, upto, passed)
        if count < _ROUTED_AT_ONCE or routed:
            return count == _ROUTED_AT_ONCE
        after = upto


def _route_window(context: TableContext, connection: SqlConnection, after: int, upto: int, passed: set[str]) -> bool:
    """Route a window; ``passed`` are groups of earlier ones that were locked, and those of this one come to them."""
    bounds = {"after": after, "upto": upto}
    freed = 0
    if context.options.ungrouped == "free":
        freed = connection.execute(_free(context), bounds).rowcount
    # What follows what was passed by stays behind it, also where its group is free again meanwhile.
    names: list[str] = []
    firsts: dict[str, int] = {}
    for row in connection.execute(_named(context), bounds):
        if row.group not in passed:
            names.append(row.group)
            if row.fresh:
                firsts[row.group] = row.first
    if firsts:
        _add_groups(context, connection, firsts)
    free = connection.execute(locking_free(context), {"groups": sorted(names)})
    locked = sorted(map(attrgetter("group_id"), free))
    passed.update(firsts.keys() - set(locked))
    ours = {**bounds, "groups": locked}
    if locked:
        connection.execute(_place(context), ours)
    marked = connection.execute(_mark(context), ours).rowcount
    settle(context, connection, locked)
    return bool(locked or freed or marked)


def routing_at_once(context: TableContext, first: int) -> list[Asked]:
    """Give the statements that route what is new as `route_new` does, without an answer between them.

    They route nothing where another transaction has the turn. The caller may send them where no acks are held back.

    Parameters
    ----------
    first
        The seq of the first message that is new: of the next `_AT_ONCE` numbers all are routed.
    """
    bounds = {"after": first - 1, "upto": first - 1 + _AT_ONCE}
    table = {"table": context.table_id}
    return [
        (_keeping_turn(context), table),
        (_adding_kept(context), bounds),
        (_locking_kept(context), {}),
        (_place(context, KEPT), bounds),
        (_mark(context, KEPT), bounds),
        *((statement, {}) for statement in settling_kept(context, may_end=True)),
    ]


def is_much_new(context: TableContext, first: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Say that there are new messages behind those that `routing_at_once` would route."""
    return sa.exists().where(is_unrouted(context.rows), context.rows.c.seq >= first + _AT_ONCE)


@lru_cache(maxsize=256)
def _keeping_turn(context: TableContext) -> sa.Select[Any]:
    turn = _turn().add_columns(sa.literal_column("''").label("name"), sa.literal_column("1").label("nth")).cte("turn")
    return context.sql.keep(turn, sa.true())


@lru_cache(maxsize=256)
def _adding_kept(context: TableContext) -> sa.Select[Any]:
    """Add the groups that are missing, and keep the names of all that have something new; none without the turn."""
    has_turn = sa.exists(sa.select(sa.literal_column("1")).select_from(context.sql.kept()))
    named = _named(context).where(has_turn).cte("named")
    # Not as a condition of its own, which becomes a join: that goes through all groups for each name.
    is_known = sa.exists().where(groups.c.table_id == context.table_id, groups.c.group_id == named.c.group)
    known = sa.func.coalesce(is_known, sa.false())
    missing = (
        sa.select(
            sa.literal(context.table_id, sa.BigInteger),
            named.c.group,
            sa.literal(0),
            sa.literal(_LOWEST),
            named.c.first,
        )
        .where(named.c.fresh == 1, ~known)
        .order_by(named.c.first)
    )
    columns = ("table_id", "group_id", "tail", "priority", "first_seq")
    added = postgresql.insert(groups).from_select(columns, missing, include_defaults=False).on_conflict_do_nothing()
    names = sa.select(named.c.group.label("name"), named.c.group.label("nth")).subquery("names")
    return context.sql.keep(names, sa.true()).add_cte(added.cte("added"))


@lru_cache(maxsize=256)
def _locking_kept(context: TableContext) -> sa.Select[Any]:
    free = locking_free(context, KEPT).cte("free")
    names = sa.select(free.c.group_id.label("name"), free.c.group_id.label("nth")).subquery("names")
    return context.sql.keep(names, sa.true())


def group_of(rows: sa.FromClause) -> sa.ColumnElement[str]:
    """Give a message's group, by the name that the catalogue has for it."""
    return sa.func.coalesce(rows.c.group_id, UNGROUPED, type_=rows.c.group_id.type)


def is_unrouted(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Say that a message has no place in its group yet, or that plain SQL changed it."""
    # Written out, because an index of these rows alone is used only where the database can see that it fits.
    return rows.c.routed == sa.literal_column("0")


def _in_window(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    after, upto = (sa.bindparam(name, type_=sa.BigInteger) for name in ("after", "upto"))
    return is_unrouted(rows) & (rows.c.seq > after) & (rows.c.seq <= upto)


def _is_new(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    # So that no index answers it: they are found by the one of those that are unrouted.
    return (sa.func.coalesce(rows.c.position, -1) == -1) & not_acked(rows)


@lru_cache(maxsize=256)
def _any_unrouted(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return sa.select(rows.c.seq).where(is_unrouted(rows)).order_by(rows.c.seq).limit(1)


@lru_cache(maxsize=1)
def _turn() -> sa.Select[Any]:
    table = message_tables.c.table_id
    return sa.select(table).where(table == sa.bindparam("table")).with_for_update(skip_locked=True)


@lru_cache(maxsize=256)
def _window(context: TableContext) -> sa.Select[Any, Any, Any]:
    rows = context.rows
    found = (
        sa.select(rows.c.seq)
        .where(is_unrouted(rows), rows.c.seq > sa.bindparam("after", type_=sa.BigInteger))
        .order_by(rows.c.seq)
        .limit(_ROUTED_AT_ONCE)
        .subquery()
    )
    return sa.select(sa.func.count(), sa.func.min(found.c.seq), sa.func.max(found.c.seq)).select_from(found)


@lru_cache(maxsize=256)
def _free(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(_in_window(rows), group_of(rows) == UNGROUPED)
        .values(group_id=None, position=None, routed=1)
    )


@lru_cache(maxsize=256)
def _named(context: TableContext) -> sa.Select[Any, Any, Any]:
    # The names cross to us: joined with the groups, a planner without statistics goes through all of one for each of
    # the other.
    rows = context.rows
    group = group_of(rows)
    fresh = sa.func.max(sa.case((_is_new(rows), 1), else_=0))
    first = sa.func.min(rows.c.seq)
    named = sa.select(group.label("group"), fresh.label("fresh"), first.label("first"))
    return named.where(_in_window(rows)).group_by(group)


def _add_groups(context: TableContext, connection: SqlConnection, firsts: dict[str, int]) -> None:
    # Only those that are missing, because inserting one that is locked would wait. Below all others,
    # because what the index remembers of them until a vacuum would else lie where every claim begins to look.
    known = connection.scalars(_known(context), {"groups": sorted(firsts)})
    missing = sorted(firsts.keys() - set(known), key=firsts.__getitem__)
    if missing:
        fixed = {"table_id": context.table_id, "tail": 0, "priority": _LOWEST}
        connection.execute(_adding, [{**fixed, "group_id": name, "first_seq": firsts[name]} for name in missing])


_adding = sa.insert(groups)  # kept, because it is compiled once


@lru_cache(maxsize=256)
def _known(context: TableContext) -> sa.Select[Any]:
    return sa.select(groups.c.group_id).where(these_groups(context))


@lru_cache(maxsize=256)
def _place(context: TableContext, name: str = "groups") -> sa.Update:
    rows, new = context.rows, context.rows.alias("new")
    group = group_of(new)
    # Looked up row by row: as a join, SQLite would go through all new messages for each group.
    tail = (
        sa.select(groups.c.tail)
        .where(groups.c.table_id == context.table_id, groups.c.group_id == group)
        .scalar_subquery()
    )
    place = tail + sa.func.row_number().over(partition_by=group, order_by=new.c.seq)
    placed = (
        sa.select(new.c.seq, place.label("place"))
        .where(_in_window(new), _is_new(new), context.sql.computed_any_of(group, name))
        .subquery("placed")
    )
    return (
        sa.update(rows)
        .where(context.sql.key_is(rows.c.seq, placed.c.seq), not_acked(rows))
        # Only what plain SQL moved here is with a consumer; it is that one's no more. The time first: MariaDB reads
        # what it has set in the same statement.
        .ordered_values(
            (rows.c.time_next, sa.case((rows.c.claim_id.is_(None), rows.c.time_next), else_=context.backend.now_sql())),
            (rows.c.claim_id, None),
            (rows.c.position, placed.c.place),
            (rows.c.routed, 1),
            (rows.c.group_id, group_of(rows)),
        )
    )


@lru_cache(maxsize=256)
def _mark(context: TableContext, name: str = "groups") -> sa.Update:
    # A group that has ended needs to know nothing any more.
    rows = context.rows
    known = sa.exists().where(groups.c.table_id == context.table_id, groups.c.group_id == group_of(rows))
    ours = context.sql.computed_any_of(group_of(rows), name)
    if name != KEPT:  # else there may be none because another transaction has the turn, for whose rows this would wait
        ours |= rows.c.time_acked.is_not(None) & ~known
    return (
        sa.update(rows)
        .where(_in_window(rows), sa.or_(rows.c.position.is_not(None), rows.c.time_acked.is_not(None)), ours)
        .values(routed=1)
    )
