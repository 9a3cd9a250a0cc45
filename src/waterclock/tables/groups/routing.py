"""Routes new messages: determines the position of each in its group.

A put only inserts rows, so that a caller's long transaction never locks a group. Consumers route messages before they
claim. One consumer routes at a time. It skips locked groups, which a later consumer routes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from waterclock.database.driver_fast_path import Asked
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups, message_tables
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import KEPT, NAMED_AT_ONCE
from waterclock.tables.groups.group_state import (
    UNGROUPED,
    append_to,
    first_closing,
    locking_free,
    settle,
    settling_routed,
    these_groups,
)
from waterclock.tables.model.claims.claim import FIRST_SEQ, LAST_SEQ
from waterclock.tables.model.row_conditions import not_acked

_ROUTED_AT_ONCE = 50_000  # in one transaction, or in those of one claim
_AT_ONCE = 2_000
"""How many messages are routed without a round trip in between; it bounds the number of group names kept."""

_LOWEST = -(2**31)
_LAST_START = 2**60
"""The last position at which a group begins; plain SQL may set any seq, and positions must not overflow."""

_YES = sa.literal_column("1")

_TURN = (
    sa.select(message_tables.c.table_id)
    .where(message_tables.c.table_id == sa.bindparam("table"))
    .with_for_update(skip_locked=True)
)

_Row = sa.Row[*tuple[Any, ...]]
_Pair = tuple[int, int]


def route(context: TableContext, connection: SqlConnection) -> None:
    """Route messages if some are new."""
    if connection.execute(_any_unrouted(context)).first() is not None:
        route_new(context, connection)


def route_new(context: TableContext, connection: SqlConnection, passed: Collection[str] | None = None) -> bool | None:
    """Route the oldest new messages, and apply changes that plain SQL made in groups. Waits for no lock.

    Returns whether there are more new messages than one transaction should route; None if another transaction routes.

    ``passed`` are the groups to skip; None: those with a message that the database refused.
    """
    if not (context.sql.one_writer or try_turn(context, connection)):
        return None
    start, most = context.reached.routed.value, min(context.sql.routed_at_once, _ROUTED_AT_ONCE)
    passed = set(context.refused_groups.now()) if passed is None and context.refused_groups.some else set(passed or ())
    skipped: list[str] = []
    while True:
        its = {"start": start} | ({"skipped": skipped} if skipped else {})
        found = connection.execute(_window(context, skips=bool(skipped)), its).all()
        window = sorted(found if context.sql.one_writer else _seen_or_locked(found), key=attrgetter("seq"))
        routed = _route_window(context, connection, window, passed)
        if len(window) < most or routed:
            return len(window) == most
        # Not behind the last place: messages that plain SQL changed can share one, of which the window has only some.
        start = min(max(start + 1, *(row.place for row in window)), LAST_SEQ)
        # A locked group may have very many messages, which would be locked and read window by window.
        skipped = sorted(passed)[:NAMED_AT_ONCE]


def try_turn(context: TableContext, connection: SqlConnection) -> bool:
    """Take the turn to route until the transaction ends; return False if another transaction has it.

    On a database with one writer, each transaction has it.
    """
    return bool(list(connection.execute(_TURN, {"table": context.table_id})))


def route_these(context: TableContext, connection: SqlConnection, names: Collection[str]) -> None:
    """Route the oldest new messages of these groups only."""
    route_new(context, connection, set(unrouted_groups(context, connection)).difference(names))


def unrouted_groups(context: TableContext, connection: SqlConnection) -> list[str]:
    """Return the groups with new messages, the one with the oldest first."""
    rows = context.rows
    group = group_of(rows)
    unrouted = unrouted_from(context, rows, "start")
    named = sa.select(group).where(unrouted).group_by(group).order_by(sa.func.min(rows.c.seq))
    return list(connection.scalars(named, {"start": FIRST_SEQ}))


def _route_window(context: TableContext, connection: SqlConnection, window: Sequence[_Row], passed: set[str]) -> bool:
    """Route a window; return whether there was anything to route.

    Locked messages stay new, and so do those behind them in their groups. ``passed`` are the groups with such messages,
    also in earlier windows.
    """
    freed, found, closers = _sorted_out(window, passed, frees=context.options.ungrouped == "free")
    if freed:
        connection.execute(_free(context), {"pairs": freed})
    if not found:
        return bool(freed)
    new = {name: [row.seq for row in rows if row.is_new] for name, rows in found.items()}
    firsts = {name: seqs[0] for name, seqs in new.items() if seqs}
    known = _add_groups(context, connection, sorted(found), firsts)
    locked = {row.group_id: row for row in connection.execute(locking_free(context), {"groups": sorted(found)})}
    passed.update(firsts.keys() - locked.keys())
    placed: list[_Pair] = []
    appended: dict[str, int] = {}
    for name, rows in found.items():
        if name in locked:
            placed += zip(new[name], count(locked[name].tail + 1))
            # A group's positions follow its seqs. If TRUNCATE has restarted those, the others are gone.
            waits = locked[name].next_position is not None and rows[0].seq > locked[name].tail
            if waits and len(new[name]) == len(rows) and name not in closers:
                appended[name] = len(rows)  # behind others that wait, which does not change when the group is due
    if placed:
        connection.execute(_place(context), {"pairs": placed})
    if appended:
        append_to(context, connection, appended)
    if closers:
        note_closing(context, connection, closers.intersection(locked))
    marked = [] if len(freed) + len(placed) == len(window) else _changed(found, locked, known)
    if marked:
        connection.execute(_mark(context), {"pairs": marked})
    # A group in which messages were placed goes on.
    settle(context, connection, locked.keys() - appended, may_end=bool(marked), noted=locked)
    return bool(locked or freed or marked)


def _changed(found: Mapping[str, Sequence[_Row]], locked: Container[str], known: Container[str]) -> list[_Pair]:
    """Return the messages that plain SQL changed, of groups that this transaction has locked or that have ended."""
    marked: list[_Pair] = []
    for name, rows in found.items():
        is_ours, is_over = name in locked, name not in known  # the row of a group that has ended is not needed
        marked += [(row.seq, 0) for row in rows if not row.is_new and (is_ours or (is_over and row.is_acked))]
    return marked


def _sorted_out(
    window: Sequence[_Row], passed: set[str], *, frees: bool
) -> tuple[list[_Pair], dict[str, list[_Row]], set[str]]:
    """Return the messages without a group, those of each group that may be routed, and the groups that one closes."""
    freed: list[_Pair] = []
    found: dict[str, list[_Row]] = {}
    closers: set[str] = set()
    for row in window:
        if frees and row.group == UNGROUPED:
            if row.ours:
                freed.append((row.seq, 0))
        elif not row.ours:
            passed.add(row.group)
        elif row.group not in passed:
            found.setdefault(row.group, []).append(row)
            if row.closes:
                closers.add(row.group)
    return freed, found, closers


def routing_at_once(context: TableContext, first: int) -> list[Asked]:
    """Return the statements of `route_new`, for one round trip.

    They do nothing if another transaction has the turn to route. They are valid only if no acks are held back.

    ``first`` is the seq of a new message: new messages up to the next `_AT_ONCE` numbers are routed, from the bound on,
    because a smaller number may be committed later, and is then routed first.
    """
    window = {"start": context.reached.routed.value, "upto": min(first - 1 + _AT_ONCE, LAST_SEQ)}
    table = {"table": context.table_id}
    return [
        (_keeping_turn(context), table),
        (_adding_kept(context), window),
        (_locking_kept(context), {}),
        (_place_kept(context), window),
        (_mark_kept(context), window),
        *([(_closing(context, KEPT), {})] if context.options.groups == "exclusive" else []),
        *((statement, {}) for statement in settling_routed(context)),
    ]


def is_much_new(context: TableContext, first: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return whether there are new messages behind those that `routing_at_once` would route."""
    behind = sa.func.least(first, LAST_SEQ - _AT_ONCE) + _AT_ONCE
    rows, place = context.rows, context.sql.routing_place(context.rows)
    # Not those that plain SQL changed, which may have any seq.
    return sa.exists().where(context.sql.is_unrouted(rows), place >= behind, rows.c.seq >= behind)


@built_once(maxsize=256)
def _keeping_turn(context: TableContext) -> sa.Select[Any]:
    turn = _TURN.add_columns(sa.literal_column("''").label("name"), sa.literal_column("1").label("nth")).cte("turn")
    return context.sql.keep(turn, sa.true())


@built_once(maxsize=256)
def _adding_kept(context: TableContext) -> sa.Select[Any]:
    """Add missing groups, and keep the names of all groups with new messages. Does nothing without the turn."""
    has_turn = sa.exists(sa.select(sa.literal_column("1")).select_from(context.sql.kept()))
    named = _named(context).where(has_turn).cte("named")
    key = groups.c.table_id, groups.c.group_id
    is_known = context.sql.look_up(sa.select(_YES).select_from(groups), context.table_id, key, named.c.group)
    missing = (
        sa.select(
            sa.literal(context.table_id, sa.BigInteger),
            named.c.group,
            sa.func.least(sa.func.greatest(named.c.first, 1), _LAST_START) - 1,
            sa.literal(_LOWEST),
            named.c.first,
        )
        .where(named.c.fresh == 1, is_known.scalar_subquery().is_(None))
        .order_by(named.c.first)
    )
    columns = ("table_id", "group_id", "tail", "priority", "first_seq")
    added = postgresql.insert(groups).from_select(columns, missing, include_defaults=False)
    names = sa.select(named.c.group.label("name"), named.c.group.label("nth")).subquery("names")
    return context.sql.keep(names, sa.true()).add_cte(added.cte("added"))


@built_once(maxsize=256)
def _locking_kept(context: TableContext) -> sa.Select[Any]:
    free = locking_free(context, KEPT).cte("free")
    names = sa.select(free.c.group_id.label("name"), free.c.group_id.label("nth")).subquery("names")
    return context.sql.keep(names, sa.true())


def group_of(rows: sa.FromClause) -> sa.ColumnElement[str]:
    """Return a message's group by its name in the catalogue."""
    return sa.func.coalesce(rows.c.group_id, UNGROUPED, type_=rows.c.group_id.type)


def unrouted_from(context: TableContext, rows: sa.FromClause, name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a message must be routed and its place is at least the one bound as ``name``."""
    return context.sql.is_unrouted_from(rows, sa.bindparam(name, type_=sa.BigInteger))


def _in_window(context: TableContext, rows: sa.FromClause) -> sa.ColumnElement[bool]:
    return unrouted_from(context, rows, "start") & (rows.c.seq <= sa.bindparam("upto", type_=sa.BigInteger))


def _is_new(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    # Written so that no index answers it: the index of unrouted messages finds them.
    return (sa.func.coalesce(rows.c.position, -1) == -1) & not_acked(rows)


@built_once(maxsize=256)
def _any_unrouted(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    order = context.sql.routing_order(rows)
    return sa.select(rows.c.seq).where(context.sql.is_unrouted(rows)).order_by(*order).limit(1)


@built_once(maxsize=256)
def _window(context: TableContext, *, skips: bool) -> sa.Select[*tuple[Any, ...]] | sa.CompoundSelect[*tuple[Any, ...]]:
    """Select the next new messages, and lock those that no other transaction has locked.

    ``skips`` says whether to skip the groups bound as ``skipped``.
    """
    search = partial(_next_new, context, skips=skips)
    seen = search(context.rows.alias("seen")).subquery("seen")
    if context.sql.one_writer:
        return sa.select(seen, _YES.label("ours"))
    still = sa.func.coalesce(context.rows.c.routed, 1) != 1
    locked = context.sql.lock_free(context.rows, search, still).subquery("locked")
    # Joined here, not in SQL: without statistics, a planner would read all of one side for each row of the other.
    return sa.union_all(sa.select(seen, sa.literal_column("0").label("ours")), sa.select(locked, _YES.label("ours")))


def _seen_or_locked(found: Sequence[_Row]) -> list[_Row]:
    """Return the messages of `_window`, each as it was locked, or as it was seen if another transaction has it."""
    ours = {row.seq: row for row in found if row.ours and row.seq is not None}
    # Messages that plain SQL moves to another group now are left to the next routing.
    both = [(row, ours.get(row.seq, row)) for row in found if not row.ours]
    return [mine if mine.group == row.group else row for row, mine in both]


def _next_new(context: TableContext, rows: sa.FromClause, *, skips: bool) -> sa.Select[*tuple[Any, ...]]:
    place = context.sql.routing_place(rows)
    is_acked = rows.c.time_acked.is_not(None)
    is_new = rows.c.position.is_(None) & ~is_acked
    found = sa.select(
        rows.c.seq,
        group_of(rows).label("group"),
        # As numbers: converting them to bool for each row would take longer than reading them.
        sa.type_coerce(is_new, sa.Integer).label("is_new"),
        sa.type_coerce(is_acked, sa.Integer).label("is_acked"),
        place.label("place"),
        rows.c.closes_group.label("closes"),
    )
    found = context.sql.by_index(found, rows, "unrouted").where(unrouted_from(context, rows, "start"))
    if skips:
        found = found.where(~context.sql.computed_any_of(group_of(rows), "skipped"))
    return found.order_by(*context.sql.routing_order(rows)).limit(min(context.sql.routed_at_once, _ROUTED_AT_ONCE))


def has_parts_left(context: TableContext, part: int | None) -> bool:
    """Return whether a claim that has routed this many parts, each in a transaction, should route more first.

    ``part`` is None if the claim ends with its transaction, which is a caller's.
    """
    return part is not None and part * context.sql.routed_at_once < _ROUTED_AT_ONCE


def first_and_newest(context: TableContext, connection: SqlConnection) -> tuple[int | None, int | None]:
    """Return the seq of the message to route next, and the greatest seq."""
    first, newest = connection.execute(_first_and_newest(context), {"start": context.reached.routed.value}).one()
    return first, newest


@built_once(maxsize=256)
def _first_and_newest(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    first = context.sql.by_index(sa.select(rows.c.seq), rows, "unrouted").where(unrouted_from(context, rows, "start"))
    first = first.order_by(*context.sql.routing_order(rows)).limit(1)
    newest = sa.select(rows.c.seq).order_by(rows.c.seq.desc()).limit(1)
    return sa.select(first.scalar_subquery(), newest.scalar_subquery())


def _add_groups(
    context: TableContext, connection: SqlConnection, names: Sequence[str], firsts: dict[str, int]
) -> set[str]:
    """Add the missing groups of ``firsts``; return those of ``names`` that exist."""
    # Only missing ones, because inserting a locked one would wait. They go below all others, or to those of the lowest
    # priority with a bound: otherwise the index's dead entries would lie, until a vacuum, where every claim begins.
    known = {row.group_id for row in connection.execute(_known(context), {"groups": names})}
    missing = sorted(firsts.keys() - known, key=firsts.__getitem__)
    if missing:
        # Positions begin at the first seq: behind all index entries of an earlier group of that name.
        bounded = context.reached.groups.of_unassigned() if context.sql.begins_at_constants else ()
        fixed = {"table_id": context.table_id, "priority": min(bounded, default=_LOWEST)}
        new = [(name, firsts[name], min(max(firsts[name], 1), _LAST_START) - 1) for name in missing]
        its = [{**fixed, "group_id": name, "first_seq": first, "tail": tail} for name, first, tail in new]
        connection.execute(_adding, its)
    return known.union(missing)


_adding = sa.insert(groups)  # compiled once


@built_once(maxsize=256)
def _known(context: TableContext) -> sa.Select[Any]:
    return sa.select(groups.c.group_id).where(these_groups(context))


@built_once(maxsize=256)
def _place(context: TableContext) -> sa.Update:
    rows = context.rows
    each, place = context.sql.update_pairs(rows)
    return each.where(not_acked(rows)).ordered_values(*_placed(context, place))


def note_closing(context: TableContext, connection: SqlConnection, names: Collection[str]) -> None:
    """Note the first message that closes each of these groups, before they are settled."""
    if context.options.groups == "exclusive":
        connection.execute(_closing(context), {"groups": sorted(names)})


@built_once(maxsize=256)
def _closing(context: TableContext, name: str = "groups") -> sa.Update:
    """Note the first of the messages just placed that closes its group: those behind the tail, until it is settled."""
    closes = first_closing(context, context.rows.c.position > groups.c.tail)
    # An update of all of them would write a new version of each row.
    chosen = these_groups(context, name), groups.c.closes_after.is_(None), closes.is_not(None)
    return sa.update(groups).where(*chosen).values(closes_after=closes)


def _placed(context: TableContext, place: sa.ColumnElement[int]) -> Sequence[tuple[sa.Column[Any], Any]]:
    """Return the values that a message gets with its position."""
    rows = context.rows
    # Only a message that plain SQL moved here can have a consumer, which loses it. The time comes first, because
    # MariaDB reads values that the same statement has set.
    return (
        (rows.c.time_next, sa.case((rows.c.claim_id.is_(None), rows.c.time_next), else_=context.backend.now_sql())),
        (rows.c.claim_id, sa.null()),
        (rows.c.position, place),
        (rows.c.routed, _YES),
        (rows.c.group_id, group_of(rows)),
    )


@built_once(maxsize=256)
def _mark(context: TableContext) -> sa.Update:
    each, _ = context.sql.update_pairs(context.rows)
    return each.values({context.rows.c.routed: _YES})


@built_once(maxsize=256)
def _free(context: TableContext) -> sa.Update:
    rows = context.rows
    each, _ = context.sql.update_pairs(rows)
    return each.values({rows.c.group_id: sa.null(), rows.c.position: sa.null(), rows.c.routed: _YES})


@built_once(maxsize=256)
def _named(context: TableContext) -> sa.Select[Any, Any, Any]:
    # The names are fetched and sent back: in a join with the groups, a planner without statistics reads all of one side
    # for each row of the other.
    rows = context.rows
    group = group_of(rows)
    fresh = sa.func.max(sa.case((_is_new(rows), 1), else_=0))
    first = sa.func.min(rows.c.seq)
    named = sa.select(group.label("group"), fresh.label("fresh"), first.label("first"))
    return named.where(_in_window(context, rows)).group_by(group)


@built_once(maxsize=256)
def _place_kept(context: TableContext) -> sa.Update:
    """Place new messages of the groups whose names are kept, up to the first that is locked elsewhere."""
    rows, seen = context.rows, context.rows.alias("seen")
    new = _new_of_kept(context, seen).subquery("new")
    ours = _new_of_kept(context, rows).with_for_update(skip_locked=True).cte("ours")
    kept = (
        sa.select(groups.c.group_id.label("name"), groups.c.tail).where(these_groups(context, KEPT)).subquery("tails")
    )
    tail = context.sql.value_of(new.c.group, kept, kept.c.tail)
    nth = sa.func.row_number().over(partition_by=new.c.group, order_by=new.c.seq)
    # As a value, which is hashed: for a join, a planner may read all of them for each message.
    is_ours = sa.func.bool_and(new.c.seq.in_(sa.select(ours.c.seq))).over(partition_by=new.c.group, order_by=new.c.seq)
    judged = sa.select(new.c.seq, new.c.group, (tail + nth).label("place"), is_ours.label("is_ours")).subquery("judged")
    placed = sa.select(judged.c.seq, judged.c.group, judged.c.place).where(judged.c.is_ours).subquery("placed")
    return (
        sa.update(rows)
        # Messages that plain SQL moves to another group now are left to the next routing.
        .where(context.sql.key_is(rows.c.seq, placed.c.seq), not_acked(rows), group_of(rows) == placed.c.group)
        .ordered_values(*_placed(context, placed.c.place))
    )


def _new_of_kept(context: TableContext, rows: sa.FromClause) -> sa.Select[Any, Any]:
    group = group_of(rows)
    ours = context.sql.computed_any_of(group, KEPT)
    return sa.select(rows.c.seq, group.label("group")).where(_in_window(context, rows), _is_new(rows), ours)


@built_once(maxsize=256)
def _mark_kept(context: TableContext) -> sa.Update:
    # Only these groups, because another transaction may have the turn to route. A group that has not begun has no row,
    # so it is never one of these; its messages that were acked before they were placed change no group.
    rows, seen = context.rows, context.rows.alias("seen")
    was_placed, is_acked = seen.c.position.is_not(None), seen.c.time_acked.is_not(None)
    ours = context.sql.computed_any_of(group_of(seen), KEPT)
    free = (
        sa.select(seen.c.seq)
        .where(_in_window(context, seen), sa.or_(was_placed & ours, ~was_placed & is_acked))
        .with_for_update(skip_locked=True)
        .cte("free")
    )
    return sa.update(rows).where(context.sql.key_is(rows.c.seq, free.c.seq)).values(routed=_YES)
