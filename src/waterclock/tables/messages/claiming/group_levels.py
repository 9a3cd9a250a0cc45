"""Runs the first query of a claim in a table with groups, for new messages, the time, and due groups' priorities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import ABOVE_EVERY_PRIORITY, BELOW_EVERY_PRIORITY
from waterclock.tables.databases.table_dialect import CHANGED_PLACES
from waterclock.tables.groups import consumers
from waterclock.tables.groups.routing import unrouted_from
from waterclock.tables.messages.claiming import bounded_groups
from waterclock.tables.messages.claiming.bounded_levels import (
    earliest_of_each,
    firsts_of,
    highest_of,
    highest_unknown,
    low_of,
    owners_values,
    times_of,
    values_of,
)
from waterclock.tables.model.claims.bounds import UNASSIGNED, BoundedSearch, Snapshot
from waterclock.tables.model.claims.claim import FIRST_SEQ
from waterclock.tables.model.row_conditions import is_waiting, not_acked
from waterclock.tables.model.schema import PARTITIONED


@dataclass(frozen=True, slots=True)
class Look:
    """The messages available to a consumer."""

    now: int  # the current time, ns
    unrouted: bool  # whether there are unrouted messages
    # The highest priority below the requested one, of unassigned groups and of the consumer's own.
    of_unassigned: int | None
    of_mine: int | None
    newest: int | None  # the seq up to which messages were examined
    # The first due unassigned groups of that priority, locked by the transaction; None: not looked for.
    free: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """The groups of one priority: the consumer's own first, then unassigned ones."""

    priority: int
    whose: tuple[str, ...]


def look(
    context: TableContext,
    connection: SqlConnection,
    me: str,
    below: int = ABOVE_EVERY_PRIORITY,
    after: int | None = None,
    count: int | None = None,
    *,
    ahead: bool = False,
) -> Look:
    """Look at everything in one round trip.

    It looks for new messages from the seq ``after`` on; None: from the bound. ``count`` is how many groups to lock, if
    nothing is unrouted, on a database that `locks_in_parts`; None: none. ``ahead`` says whether a priority counts whose
    groups are due only later.
    """
    if context.sql.begins_at_constants and bounded_groups.has_bounds(context):
        found = _look_from_bounds(context, connection, me, below, after, ahead=ahead)
        if found is not None:
            return found
    # With NULL, the second of two equal searches finds nothing at once.
    values: dict[str, Any] = {"below": below, "me": None if me == UNASSIGNED else me, "unassigned": UNASSIGNED}
    search = context.reached.routed.begin() if after is None and context.sql.is_bounded else None
    routed = context.reached.routed.value
    values["start"] = search.low if search is not None else _before(routed) if after is None else after
    if context.sql.is_bounded:
        values |= {"marks": False, **values_of(context.reached.groups.at_values(me))}  # it may have begun before
    statement = _looking(context, all_rows=after is None, ahead=ahead)
    if count is None:
        [found] = connection.execute(statement, values)
        if search is not None:
            note_look(context, found, search)
        newest, free = found.newest if after is None else after, None
        if after is None:
            _notice_restart(context, routed, found)
    else:
        rows = connection.execute(_lock_unassigned(context), {**values, "count": count}).all()
        found, newest, free = rows[0], after, [row for row in rows if row.group_id is not None]
    mine = found.of_unassigned if me == UNASSIGNED else found.of_mine
    return Look(found.now, found.first_new is not None, found.of_unassigned, mine, newest, free)


def _look_from_bounds(
    context: TableContext, connection: SqlConnection, me: str, below: int, after: int | None, *, ahead: bool
) -> Look | None:
    """Look as `look` from the bounds of due groups; return None if a priority without a bound has groups."""
    reached = context.reached
    search = reached.groups.at_values(me)
    known, routed = search.priorities, reached.routed.value
    values = {"start": _before(routed) if after is None else after, **bounded_groups.values_of(search, below)}
    found = connection.execute(_looking_from_bounds(context, len(known)), values).one()
    owners = bounded_groups.read(known, found[3:])
    if any(owner.unknown is not None for owner in owners):
        return None
    if after is None:
        _notice_restart(context, routed, found)
    until = None if ahead else found.now
    of_unassigned, of_mine = (owner.highest(below, until) for owner in owners)
    newest = found.newest if after is None else after
    return Look(found.now, found.first_new is not None, of_unassigned, of_mine, newest)


def _before(routed: int) -> int:
    """Return where a search for new messages begins: one seq before the bound, for `_notice_restart`."""
    return max(FIRST_SEQ, routed - 1)


def _notice_restart(context: TableContext, routed: int, found: Any) -> None:
    """Begin at the first message again if TRUNCATE seems to have restarted the numbers.

    Then all messages are below the bound, or the last one below it is new.
    """
    if found.newest is not None and (found.newest < routed - 1 or found.first_new == routed - 1):
        context.reached.restart_routing()


def levels(
    context: TableContext, connection: SqlConnection, me: str, top: Look | None = None, *, ahead: bool = False
) -> Iterator[Level]:
    """Yield the priorities from the top: usually there is one, and a caller that has enough stops.

    ``top`` is the look at the highest one. ``ahead`` is as in `look`.
    """
    below = ABOVE_EVERY_PRIORITY
    while True:
        found = top or look(context, connection, me, below, ahead=ahead)
        top = None
        ungrouped = None
        if context.options.ungrouped == "free":
            ungrouped = connection.execute(_ungrouped_priority(context), {"below": below}).scalar()
        highest = BELOW_EVERY_PRIORITY
        for priority in (found.of_unassigned, found.of_mine, ungrouped):
            if priority is not None and priority > highest:
                highest = priority
        if highest == BELOW_EVERY_PRIORITY:
            return
        below = highest
        mine = (me,) if found.of_mine == below else ()
        unassigned = (UNASSIGNED,) if found.of_unassigned == below and me != UNASSIGNED else ()
        yield Level(below, mine + unassigned)


def next_group_due(
    context: TableContext, connection: SqlConnection, consumer: str | None, max_groups: int | None
) -> tuple[int | None, int]:
    """Return when something may be due for a consumer, and the current time, both ns. Reads only.

    It stops at the first message that may be due already.
    """
    me, limited = consumer or UNASSIGNED, max_groups is not None and context.options.groups == "exclusive"
    its: dict[str, Any] = {"me": None if me == UNASSIGNED else me, "unassigned": UNASSIGNED}
    its["start"] = context.reached.routed.value
    search, known = context.reached.groups.at_values(me), None
    if context.sql.is_bounded or (context.sql.begins_at_constants and bounded_groups.has_bounds(context)):
        its |= bounded_groups.values_of(search)
        known = search.priorities
    [top] = connection.execute(_next_group_due(context, None if known is None else len(known), limited=limited), its)
    if known is None:
        ends = [
            (top.any_earliest, top.any_lowest == top.any_highest),
            (top.my_earliest, top.my_lowest == top.my_highest),
        ]
    else:
        columns = top[-bounded_groups.count_of(known) :]
        owners = bounded_groups.read(known, columns)
        ends = [(min(owner.firsts.values(), default=None), owner.unknown is None) for owner in owners]
    # The stored max_groups is that of the last claim.
    full = limited and not top.has_room and top.max_groups == max_groups
    earliest: int | None = None
    for due in _due_times(context, connection, me, top, ends, full=full):
        earliest = due if earliest is None else min(earliest, due)
        if earliest <= top.now:
            break
    return earliest, top.now


def _due_times(
    context: TableContext,
    connection: SqlConnection,
    me: str,
    top: sa.Row[Any],
    ends: Sequence[tuple[int | None, bool]],
    *,
    full: bool,
) -> Iterator[int]:
    """Yield when something may be due, ns, the cheapest answers first.

    ``ends`` is when the first unassigned group and the first of the consumer's own are due, each with whether this
    holds for all priorities.
    """
    if top.first_new is not None:
        yield 0
    if context.options.groups == "exclusive":
        due, is_refused = consumers.claim_due(context, me, top.session, top.lease_until)
        yield due
        if is_refused:  # another session has the name; asking for its groups would not pause
            return
        if top.lapse is not None:
            yield top.lapse
    ends = ends[1:] if full else ends
    if context.options.ungrouped != "free" and all(is_all for _, is_all in ends):
        yield from (earliest for earliest, _ in ends if earliest is not None)
    else:
        yield from _due_times_by_level(context, connection, me, full=full)


def _due_times_by_level(context: TableContext, connection: SqlConnection, me: str, *, full: bool) -> Iterator[int]:
    for level in levels(context, connection, me, ahead=True):
        at: dict[str, Any] = {"table_id": context.table_id, "of": level.priority}
        questions = [(_earliest_group(), at | {"who": who}) for who in level.whose if who != UNASSIGNED or not full]
        if context.options.ungrouped == "free":
            questions.append((_earliest_ungrouped(context), at))
        for question, values in questions:
            found = connection.execute(question, values).scalar()
            if found is not None:
                yield found


def own_groups_due(
    context: TableContext, connection: SqlConnection, names: Sequence[str], *, limited: bool
) -> tuple[dict[str, tuple[int | None, bool]], int]:
    """Return when each of these consumers has to claim, for its lease or its groups, and the current time; ns.

    The time stands by name, with whether the consumer may get more groups. It is None for consumers whose groups have
    several priorities: see `next_group_due`. ``limited`` says whether they have a ``max_groups``. Reads only.
    """
    found: dict[str, tuple[int | None, bool]] = dict.fromkeys(names, (0, True))
    now = 0
    values = {"names": list(names)}
    if context.sql.is_bounded:
        values |= owners_values(context.reached.groups, names)
    for row in connection.execute(_own_groups_due(context, limited=limited), values):
        now = row.now
        due, is_refused = consumers.claim_due(context, row.name, row.session, row.lease_until)
        if is_refused:
            found[row.name] = due, False
        elif row.my_lowest != row.my_highest:
            found[row.name] = None, not limited or bool(row.has_room)
        else:
            due = due if row.my_earliest is None else min(due, row.my_earliest)
            found[row.name] = due, not limited or bool(row.has_room)
    return found, now


FREE_COLUMNS = (groups.c.group_id, groups.c.assigned, groups.c.head, groups.c.next_position, groups.c.tail)
"""The columns of a free group that a claim needs."""


def at_level() -> tuple[sa.ColumnElement[bool], ...]:
    """Select the groups of the table bound as ``table_id``, of the priority ``of``, assigned to ``who``."""
    return (
        groups.c.table_id == sa.bindparam("table_id"),
        groups.c.assigned == sa.bindparam("who"),
        groups.c.priority == sa.bindparam("of"),
    )


@built_once(maxsize=256)
def _looking_from_bounds(context: TableContext, known: int) -> sa.Select[*tuple[Any, ...]]:
    return _new_ones(context, all_rows=True).add_columns(*bounded_groups.columns_of(context, known))


@built_once(maxsize=256)
def _looking(context: TableContext, *, all_rows: bool, ahead: bool) -> sa.Select[*tuple[Any, ...]]:
    return looking(context, all_rows=all_rows, firsts=None if ahead else _firsts(context))


def _firsts(context: TableContext) -> tuple[sa.CTE, sa.CTE] | None:
    if not context.sql.is_bounded:
        return None
    return firsts_of(context, "unassigned", "lows"), firsts_of(context, "me", "own_lows")


def looking(
    context: TableContext, *, all_rows: bool, firsts: tuple[sa.CTE, sa.CTE] | None = None
) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement of `look`.

    ``firsts`` are the first due groups of each known priority, unassigned and the consumer's own: levels are searched
    from the bounds on, and the statement returns what these need to advance.
    """

    def greatest(who: str) -> sa.ScalarSelect[Any]:
        return (
            sa.select(groups.c.priority)
            .where(
                groups.c.table_id == context.table_id,
                groups.c.assigned == sa.bindparam(who, type_=groups.c.assigned.type),
                groups.c.ready_at.is_not(None),
                groups.c.priority < sa.bindparam("below", type_=sa.BigInteger),
            )
            .order_by(groups.c.priority.desc())
            .limit(1)
            .scalar_subquery()
        )

    found = _new_ones(context, all_rows=all_rows)
    if (all_rows or firsts is not None) and context.sql.is_bounded:
        oldest, mark = context.sql.seen_by(sa.bindparam("marks", type_=sa.Boolean), context.rows)
        found = found.add_columns(oldest.label("oldest"), mark.label("mark"))
    if firsts is None:
        return found.add_columns(greatest("unassigned").label("of_unassigned"), greatest("me").label("of_mine"))
    below = sa.bindparam("below", type_=sa.BigInteger)
    free, own = firsts
    return found.add_columns(
        highest_of(context, "unassigned", free, below).label("of_unassigned"),
        highest_of(context, "me", own, below).label("of_mine"),
        times_of(free).label("firsts"),
        times_of(own).label("own_firsts"),
    )


def _new_ones(context: TableContext, *, all_rows: bool) -> sa.Select[*tuple[Any, ...]]:
    """Select the time and the first new message; if ``all_rows``, the newest message, too."""
    rows = context.rows
    # In index order; otherwise a planner scans the table if few of its messages are unrouted.
    is_new = unrouted_from(context, rows, "start")
    place = context.sql.routing_place(rows)
    first = context.sql.by_index(sa.select(rows.c.seq, place.label("place")), rows, "unrouted")
    new = first.where(is_new).order_by(*context.sql.routing_order(rows)).limit(1).cte("new")
    # Not as a maximum, for which a planner that believes the table empty would scan it.
    last = sa.select(rows.c.seq).order_by(rows.c.seq.desc()).limit(1)
    if rows.info.get(PARTITIONED):
        last = last.where(not_acked(rows))  # otherwise each day of acked messages is scanned
    newest = last.scalar_subquery()
    found = sa.select(context.backend.now_sql().label("now"), sa.select(new.c.seq).scalar_subquery().label("first_new"))
    if all_rows:
        found = found.add_columns(newest.label("newest"))
    if all_rows and context.sql.is_bounded:
        first_place = sa.select(new.c.place).scalar_subquery()
        found = found.add_columns(first_place.label("first_place"))
    return found


def note_look(context: TableContext, found: Any, search: BoundedSearch) -> None:
    """Note the result of a search for new messages."""
    # Not beyond the last message. Without a message, all that made the bound advance were purged.
    end = min(CHANGED_PLACES, search.known if found.newest is None else max(search.known, found.newest + 1))
    if found.first_place is not None:
        end = min(end, found.first_place)
    context.reached.routed.found_nothing(search, end, Snapshot(found.now, found.oldest, found.mark))


@built_once(maxsize=256)
def _lock_unassigned(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    firsts = _firsts(context)
    top = looking(context, all_rows=False, firsts=firsts).cte("top")
    nothing_new = sa.select(top.c.first_new).scalar_subquery().is_(None)
    level = sa.select(top.c.of_unassigned).scalar_subquery()
    is_ahead = [] if firsts is None else [groups.c.ready_at >= sa.select(low_of(firsts[0], level)).scalar_subquery()]
    free = (
        sa.select(*FREE_COLUMNS)
        .where(
            groups.c.table_id == context.table_id,
            groups.c.assigned == sa.bindparam("unassigned", type_=groups.c.assigned.type),
            groups.c.priority == level,
            groups.c.ready_at <= sa.select(top.c.now).scalar_subquery(),
            *is_ahead,
            nothing_new,
        )
        .order_by(groups.c.ready_at, groups.c.first_seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
        .cte("free")
    )
    return sa.select(top, free).select_from(top.outerjoin(free, sa.true()))


@built_once(maxsize=1)
def _earliest_group() -> sa.Select[Any]:
    return (
        sa.select(groups.c.ready_at)
        .where(*at_level(), groups.c.ready_at.is_not(None))
        .order_by(groups.c.ready_at)
        .limit(1)
    )


@built_once(maxsize=256)
def _next_group_due(context: TableContext, known: int | None, *, limited: bool) -> sa.Select[*tuple[Any, ...]]:
    """Look at everything in one statement, because most looks find nothing and each statement costs a round trip."""
    own, rows = consumers.consumers, context.rows
    its = own.c.table_id == context.table_id
    me = sa.bindparam("me", type_=own.c.name.type)
    unassigned = sa.bindparam("unassigned", type_=groups.c.assigned.type)

    def of_me(value: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
        return sa.select(value).where(its, own.c.name == me).scalar_subquery()

    of_consumers: list[sa.ColumnElement[Any]] = []
    if context.options.groups == "exclusive":
        lapse = sa.select(sa.func.min(own.c.lease_until)).where(its).scalar_subquery()
        found = {"session": of_me(own.c.session), "lease_until": of_me(own.c.lease_until), "lapse": lapse}
        if limited:
            found |= {"has_room": of_me(consumers.has_room(context)), "max_groups": of_me(own.c.max_groups)}
        of_consumers = [one.label(name) for name, one in found.items()]
    if known is None:
        ends = [*_ready_ends(context, "any", unassigned), *_ready_ends(context, "my", me)]
    else:
        ends = bounded_groups.columns_of(context, known)
    return sa.select(
        context.backend.now_sql().label("now"),
        context.sql.by_index(sa.select(rows.c.seq), rows, "unrouted")
        .where(unrouted_from(context, rows, "start"))
        .order_by(*context.sql.routing_order(rows))
        .limit(1)
        .scalar_subquery()
        .label("first_new"),
        *of_consumers,
        *ends,
    )


@built_once(maxsize=256)
def _own_groups_due(context: TableContext, *, limited: bool) -> sa.Select[*tuple[Any, ...]]:
    own = consumers.consumers
    return sa.select(
        context.backend.now_sql().label("now"),
        own.c.name,
        own.c.session,
        own.c.lease_until,
        *_ready_ends(context, "my", own.c.name),
        *([consumers.has_room(context).label("has_room")] if limited else []),
    ).where(own.c.table_id == context.table_id, context.sql.any_of(own.c.name, "names"))


def _ready_ends(context: TableContext, whose: str, owner: sa.ColumnElement[str]) -> list[sa.Label[Any]]:
    """Select the lowest and highest priority of an owner's ready groups, and the earliest due time.

    That time is of the lowest priority. Usually both priorities are the same, and it is the earliest of all. If
    searches have bounds, it is the earliest of all known priorities, the lowest priority is NULL, and the highest one
    is unknown. The owner is then one of ``owners``.
    """
    if context.sql.is_bounded:
        return [
            earliest_of_each(context, owner).label(f"{whose}_earliest"),
            sa.null().label(f"{whose}_lowest"),
            highest_unknown(context, owner, sa.literal(ABOVE_EVERY_PRIORITY, sa.BigInteger)).label(f"{whose}_highest"),
        ]
    priority, ready_at = groups.c.priority, groups.c.ready_at

    def first(value: sa.Column[int], *order: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
        its = groups.c.table_id == context.table_id, groups.c.assigned == owner, ready_at.is_not(None)
        found = sa.select(value).where(*its).order_by(*order).limit(1)
        return found.correlate(consumers.consumers).scalar_subquery()

    return [
        first(ready_at, priority, ready_at).label(f"{whose}_earliest"),
        first(priority, priority).label(f"{whose}_lowest"),
        first(priority, priority.desc()).label(f"{whose}_highest"),
    ]


def is_ungrouped(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message is ungrouped and may be due."""
    return is_waiting(context.rows) & context.rows.c.group_id.is_(None)


@built_once(maxsize=256)
def _ungrouped_priority(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return (
        sa.select(rows.c.priority)
        .where(is_ungrouped(context), rows.c.priority < sa.bindparam("below", type_=sa.BigInteger))
        .order_by(rows.c.priority.desc())
        .limit(1)
    )


@built_once(maxsize=256)
def _earliest_ungrouped(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    return (
        sa.select(rows.c.time_next)
        .where(is_ungrouped(context), rows.c.priority == sa.bindparam("of"))
        .order_by(rows.c.time_next)
        .limit(1)
    )
