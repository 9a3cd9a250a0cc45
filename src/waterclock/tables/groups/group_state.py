"""Maintains the state of groups: their first messages, when each may be handed out, and to which consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import consumers, groups
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import KEPT, NAMED_AT_ONCE, pieces
from waterclock.tables.groups.first_positions import (
    SEARCHED_AT_ONCE,
    first_in_group,
    first_values,
    searches_for,
)
from waterclock.tables.groups.settled_values import (
    GroupPlaces,
    due_at,
    first_of,
    first_place,
    is_exhausted_sql,
    settled_values,
    written_at,
)
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.epochs import uncounted_sql
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import FURTHEST
from waterclock.time import MAX_NS

UNGROUPED = ""  # the group of messages without one


def these_groups(context: TableContext, name: str = "groups") -> sa.ColumnElement[bool]:
    """Select the table's groups that are bound as ``name``; the transaction changes only those it locked."""
    return context.sql.any_key(groups, context.table_id, (groups.c.table_id, groups.c.group_id), name)


def is_assigned(who: Any) -> sa.ColumnElement[bool]:
    """Compare a group's owner, for groups that other conditions select: this one should use no index."""
    return sa.func.coalesce(groups.c.assigned, UNASSIGNED) == who


def belongs_to(consumer: Any) -> sa.ColumnElement[bool]:
    """Select a consumer's groups by the index of assigned groups."""
    return (groups.c.assigned == consumer) & (groups.c.assigned != sa.literal_column("''"))


def drains_to(consumer: Any) -> sa.ColumnElement[bool]:
    """Select the groups of others that go to a consumer once nothing of them is leased, by their own index."""
    return (groups.c.drain_to == consumer) & (groups.c.assigned != consumer)


def lock_groups(context: TableContext, connection: SqlConnection, group_ids: Iterable[str]) -> dict[str, sa.Row[Any]]:
    """Lock groups until the transaction ends, in order, so that transactions do not deadlock.

    Returns their current rows, by name. Groups that have ended are missing.
    """
    return by_name(connection.execute(*locking_groups(context, group_ids)))


def locking_groups(context: TableContext, group_ids: Iterable[str]) -> Asked:
    """Return the statement of `lock_groups`, for callers that send more at once."""
    return _locked(context), {"groups": sorted(set(group_ids))}


def by_name(found: SqlRows) -> dict[str, sa.Row[Any]]:
    return {row.group_id: row for row in found}


def lock_free_groups(context: TableContext, connection: SqlConnection, group_ids: Iterable[str]) -> list[str]:
    """Lock those of these groups that no other transaction has locked; return them."""
    locking = locking_free(context)
    every = pieces(sorted(set(group_ids)))
    return sorted(row.group_id for some in every for row in connection.execute(locking, {"groups": list(some)}))


@built_once(maxsize=256)
def locking_free(context: TableContext, name: str = "groups") -> sa.Select[*tuple[Any, ...]]:
    """Return the statement that locks those of the groups bound as ``name`` that no other transaction has locked."""
    key = groups.c.table_id, groups.c.group_id
    return context.sql.lock_keys(groups, context.table_id, key, name, skip_locked=True)


@dataclass(frozen=True, slots=True)
class Out:
    """Leased messages of groups in which no other transaction has locked one."""

    names: list[str]  # the groups without such locks
    seqs: list[int]  # the leased messages of those groups


def lock_out(context: TableContext, connection: SqlConnection, group_ids: Iterable[str]) -> Out:
    """Lock the leased messages of groups that the transaction has locked; wait for none.

    A group with a message locked elsewhere is left out: later messages must not overtake it.
    """
    names = sorted(set(group_ids))
    if not names:
        return Out([], [])
    found = _known_ones(connection.execute(_out_and_locked(context), {"groups": names}).all())
    ours = {row.seq for row in found if row.ours}
    locked = {row.group_id for row in found if row.seq not in ours}
    return Out(
        [name for name in names if name not in locked], sorted({row.seq for row in found if row.group_id not in locked})
    )


def is_out(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message is leased or its lease has lapsed."""
    return rows.c.time_acked.is_(None) & rows.c.claim_id.is_not(None)


@built_once(maxsize=256)
def _out_and_locked(context: TableContext) -> sa.Select[*tuple[Any, ...]] | sa.CompoundSelect[*tuple[Any, ...]]:
    def out(rows: sa.FromClause) -> sa.Select[Any, Any]:
        return sa.select(rows.c.seq, rows.c.group_id).where(context.sql.any_of(rows.c.group_id, "groups"), is_out(rows))

    return _seen_and_locked(context, out, context.rows.c.claim_id.is_not(None))


def _known_ones(found: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """Return the rows of `_seen_and_locked` that are messages."""
    return [row for row in found if row.seq is not None]


def _seen_and_locked(
    context: TableContext, choose: Callable[[sa.FromClause], sa.Select[*tuple[Any, ...]]], still: sa.ColumnElement[bool]
) -> sa.Select[*tuple[Any, ...]] | sa.CompoundSelect[*tuple[Any, ...]]:
    """Select messages, and lock those that no other transaction has locked; ``still`` as in `lock_free`."""
    yes = sa.literal_column("1").label("ours")
    if context.sql.one_writer:
        return choose(context.rows).add_columns(yes)
    seen = choose(context.rows.alias("seen")).subquery("seen")
    locked = context.sql.lock_free(context.rows, choose, not_acked(context.rows) & still).subquery("locked")
    return sa.union_all(sa.select(seen, sa.literal_column("0").label("ours")), sa.select(locked, yes))


@built_once(maxsize=256)
def _locked(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    return context.sql.lock_keys(groups, context.table_id, (groups.c.table_id, groups.c.group_id), "groups")


def settle(
    context: TableContext,
    connection: SqlConnection,
    group_ids: Iterable[str],
    *,
    may_end: bool = True,  # false if the caller knows that messages remain
    from_first: bool = False,  # whether to read all messages of the groups, because their rows may be wrong
    noted: Mapping[str, Any] | None = None,  # the rows of the groups by name, if the caller has read them
) -> None:
    """Update groups after their messages changed: the first ones, and when they may be handed out.

    The row of a group without messages ends unless it has an owner, a pause or a pin: it is deleted, on PostgreSQL some
    minutes later. The caller has locked the groups.
    """
    names = sorted(set(group_ids))
    by_constants = context.sql.begins_at_constants
    for some in pieces(names, SEARCHED_AT_ONCE if by_constants else NAMED_AT_ONCE):
        chosen: dict[str, Any] = {"groups": list(some)}
        starts: dict[str, int] = {}
        if by_constants:
            starts = dict.fromkeys(some, -FURTHEST) if from_first else starts_of(context, connection, some, noted)
        if context.options.ack_order == "hold":
            _ack_held_back(context, connection, chosen["groups"], starts)
        if starts:
            noting = _note_from(context, searches_for(len(starts)))
            connection.execute(noting, {"groups": list(starts), **first_values(starts)})
        statements = _settling(context, may_end=may_end, from_first=from_first)
        execute_later(connection, *[(statement, chosen) for statement in statements])


def starts_of(
    context: TableContext, connection: SqlConnection, names: Sequence[str], noted: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """Return the position from which the first message of each group is searched; ``noted`` as in `settle`."""
    if noted is None:
        noted = by_name(connection.execute(_heads_and_tails(context), {"groups": list(names)}))
    known = {name: noted[name] for name in names if name in noted}
    return {name: row.tail if row.head is None else row.head for name, row in known.items()}


@built_once(maxsize=256)
def _heads_and_tails(context: TableContext) -> sa.Select[Any, Any, Any]:
    return sa.select(groups.c.group_id, groups.c.head, groups.c.tail).where(these_groups(context))


@built_once(maxsize=256)
def _settling(context: TableContext, *, may_end: bool, from_first: bool) -> Sequence[sa.Executable]:
    noted = [] if context.sql.begins_at_constants else [_note(context, from_first=from_first)]
    drained = [_drained(context)] if context.options.groups == "exclusive" else []
    ended = [_ended(context)] if may_end else []
    return [*noted, *drained, *ended]


def settling_routed(context: TableContext) -> Sequence[sa.Executable]:
    """Return the statements of `settle` for kept groups whose messages were routed, if no acks are held back.

    Groups that were due and still are keep their place in the order of a claim. Otherwise a group that always gets new
    messages would never have its turn.
    """
    exclusive = [_drained(context, KEPT)] if context.options.groups == "exclusive" else []
    return [_note(context, KEPT, keeps_place=True), *exclusive, _ended(context, KEPT)]


def settling_claimed(context: TableContext) -> sa.Executable:
    """Return the statement of `settle` for the groups whose names are kept after a claim, if no acks are held back."""
    return _note(context, KEPT)


def append_to(context: TableContext, connection: SqlConnection, counts: Mapping[str, int]) -> None:
    """Note how many messages went behind other messages that still wait in groups, which changes nothing else."""
    by_count: dict[int, list[str]] = {}
    for name, count in counts.items():
        by_count.setdefault(count, []).append(name)
    for count, names in by_count.items():
        execute_later(connection, (_appending(context), {"groups": sorted(names), "more": count}))


@built_once(maxsize=256)
def _appending(context: TableContext) -> sa.Update:
    more = sa.bindparam("more", type_=sa.BigInteger)
    return sa.update(groups).where(these_groups(context)).values(tail=groups.c.tail + more)


def settle_starts(
    context: TableContext,
    connection: SqlConnection,
    going_on: Iterable[str],
    ending: Iterable[str],
    noted: Mapping[str, Any],  # as in `settle`
) -> None:
    """Settle groups of which only the first messages were acked, with fewer statements than `settle`.

    ``going_on`` are groups that have messages left, or whose row must stay. ``ending`` are groups without messages,
    unless one came meanwhile; they end.
    """
    values = {"groups": sorted(going_on), "ending": sorted(ending)}
    if context.sql.begins_at_constants:
        settle(context, connection, [*going_on, *ending], may_end=bool(ending), noted=noted)
    elif not values["ending"]:
        execute_later(connection, (_note(context), values))
    elif not values["groups"]:
        execute_later(connection, (_empty(context), values))
    else:
        run_both(context, connection, _note(context), _empty(context), values)


def must_stay(noted: sa.Row[Any]) -> bool:
    """Return whether a group's row must stay even if it has no messages."""
    return noted.assigned != UNASSIGNED or noted.paused_until is not None or noted.pinned != 0


def run_both(
    context: TableContext,
    connection: SqlConnection,
    one: sa.Update,
    another: sa.Update | sa.Delete,
    values: Mapping[str, Any],
) -> None:
    """Run two statements that change different rows and do not see each other, as one if that is faster."""
    execute_later(connection, *[(statement, values) for statement in context.sql.both(one, another)])


@built_once(maxsize=256)
def _empty(context: TableContext) -> sa.Update | sa.Delete:
    first = first_of(context, context.rows.c.position)
    its = these_groups(context, "ending"), first.is_(None), *needless()
    if not context.sql.keeps_ended:
        return sa.delete(groups).where(*its)
    values = {"head": None, "next_position": None, "ready_at": None, "ended_at": context.backend.now_sql()}
    return sa.update(groups).where(*its).values(values)


def settle_exhausted(context: TableContext, connection: SqlConnection, after: str | None = None) -> str | None:
    """Settle groups that are never due by themselves, because changed options may unblock them.

    Groups locked elsewhere are left to a later check. Returns the last group that was checked; None after the last one.

    It begins behind the group ``after`` in the database's order, or with the first if that is None.
    """
    its = context.sql.of_table(groups.c.table_id, context.table_id)
    never_due = its & groups.c.ready_at.is_(None) & groups.c.head.is_not(None)
    chosen = sa.select(groups.c.group_id).where(never_due).order_by(groups.c.group_id).limit(NAMED_AT_ONCE)
    if after is not None:
        chosen = chosen.where(groups.c.group_id > after)
    names = list(connection.scalars(chosen))
    if not names:
        return None
    settle(context, connection, lock_free_groups(context, connection, names))
    return names[-1]


@built_once(maxsize=256)
def _note(
    context: TableContext, name: str = "groups", *, from_first: bool = False, keeps_place: bool = False
) -> sa.Update:
    noted = settled_values(context, from_first=from_first, keeps_place=keeps_place)
    return sa.update(groups).where(these_groups(context, name)).values(noted)


@built_once(maxsize=256)
def _note_from(context: TableContext, count: int) -> sa.Update:
    """Return `_note` for so many groups, with the constants of `first_values`."""
    noted = settled_values(context, from_first=False, places=_places(context, count))
    # Otherwise a server that believes the catalogue empty scans it instead of looking up the groups.
    return sa.update(groups).where(these_groups(context)).values(noted).with_hint("FORCE INDEX (PRIMARY)")


def _places(context: TableContext, count: int) -> GroupPlaces:
    """Return the places of a group's messages, with the constants of `first_values`."""
    unclaimed = " AND claim_id IS NULL AND ack_held_at IS NULL"
    return GroupPlaces(
        first_in_group(context, count),
        first_in_group(context, count, unclaimed),
        first_in_group(context, count, last=True),
    )


def contradicts(context: TableContext, *, whole: bool, searches: int | None = None) -> sa.ColumnElement[bool]:
    """Return the condition that settling would change when and to which consumer a group goes.

    With ``searches``, this condition has the constants of `first_values` for so many groups. ``whole`` says whether to
    look for unacked messages before the group's head, too, and for those without a position: this reads the entries of
    all finished messages that an old snapshot shows.
    """
    # The other values are compared only if a group has these, so that they follow from its row.
    places = None if searches is None else _places(context, searches)
    noted = settled_values(context, from_first=False, places=places, is_compared=True)
    deciding = [name for name in ("head", "next_position", "ready_at", "idle_since") if name in noted]
    known: dict[str, Any] = {name: groups.c[name] for name in deciding}
    now = context.backend.now_sql()
    known["ready_at"] = sa.case((groups.c.ready_at < now, now), else_=groups.c.ready_at)
    wrong = [known[name].is_distinct_from(noted[name]) for name in deciding]
    its = () if searches is None else (context.rows.c.position == groups.c.head,)
    wrong += [first_of(context, context.rows.c.ack_held_at, *its).is_not(None), has_to_end()]
    if context.sql.keeps_ended:
        wrong.append(groups.c.ended_at.is_not(None) & groups.c.head.is_not(None))
    if whole:
        rows = context.rows
        earlier = first_of(context, rows.c.seq, rows.c.position < first_place(), from_first=True)
        its = rows.c.group_id == groups.c.group_id, rows.c.time_acked.is_(None), has_lost_its_place(context)
        # No EXISTS, which PostgreSQL might answer for all groups at once: from a search of all messages.
        lost = sa.select(rows.c.seq).where(*its).limit(1).correlate(groups).scalar_subquery()
        wrong += [earlier.is_not(None), lost.is_not(None)]
    return sa.or_(*wrong)


def has_lost_its_place(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that plain SQL removed a message's position in its group, on which the router relies."""
    return context.rows.c.position.is_(None) & (context.rows.c.routed == sa.literal_column("1"))


def is_behind(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that an earlier message of the group is not acked."""
    rows = context.rows
    key = groups.c.table_id, groups.c.group_id
    head = context.sql.look_up(sa.select(groups.c.head), context.table_id, key, rows.c.group_id)
    return rows.c.position > head.correlate(rows).scalar_subquery()


def epoch_begun(context: TableContext) -> sa.ColumnElement[int]:
    """Return the epoch of a message taken back from a consumer: a message behind another has not been started."""
    epoch = context.rows.c.epoch
    return sa.case((is_behind(context), uncounted_sql(epoch)), else_=epoch)


def has_something_out(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that messages of a group are leased: always the first, so the head is one."""
    rows = context.rows
    its = rows.c.position == groups.c.head, rows.c.claim_id.is_not(None)
    return first_of(context, rows.c.seq, *its).is_not(None)  # no EXISTS, as in `contradicts`


@built_once(maxsize=256)
def _drained(context: TableContext, name: str = "groups") -> sa.Update:
    """Hand over groups that were draining, and release those whose closing message and all before it are acked.

    A closed group is new to its next consumer, even if it is the same one. A pinned group stays.
    """
    rows = context.rows
    out = has_something_out(context)
    closed = groups.c.closes_after < sa.func.coalesce(groups.c.head, MAX_NS)
    now = written_at(context)
    is_head = rows.c.position == groups.c.head
    lapse = context.sql.larger(first_of(context, rows.c.time_next, is_head), now)
    due = first_of(context, due_at(context, is_exhausted_sql(context), now), is_head)
    lives = sa.exists().where(consumers.c.table_id == groups.c.table_id, consumers.c.name == groups.c.drain_to)
    heir = sa.case((lives | (groups.c.pinned == 1), groups.c.drain_to), else_=UNASSIGNED)
    drains_to = sa.func.coalesce(groups.c.drain_to, UNASSIGNED)
    # In this order, because MariaDB reads values that the same statement has set.
    return (
        sa.update(groups)
        .where(these_groups(context, name), (groups.c.drain_to.is_not(None) & ~out) | (closed & (groups.c.pinned == 0)))
        .ordered_values(
            (groups.c.ready_at, sa.case((out, lapse), else_=due)),
            (groups.c.assigned, sa.case((out, groups.c.assigned), else_=heir)),
            (groups.c.drain_to, sa.case((out, drains_to), else_=sa.null())),
            (groups.c.had_first, sa.case((closed, sa.null()), else_=groups.c.had_first)),
            (groups.c.closes_after, sa.case((closed, first_closing(context)), else_=groups.c.closes_after)),
        )
    )


def first_closing(context: TableContext, *conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Return the position of the first unacked message of a group that closes it."""
    rows = context.rows
    return first_of(context, rows.c.position, rows.c.closes_group == sa.literal_column("1"), *conditions)


@built_once(maxsize=256)
def _ended(context: TableContext, name: str = "groups") -> sa.Update | sa.Delete | sa.TextClause:
    if context.sql.keeps_ended:
        its = these_groups(context, name), has_to_end()
        return sa.update(groups).where(*its).values(ended_at=context.backend.now_sql(), idle_since=None)
    key = groups.c.table_id, groups.c.group_id
    return context.sql.delete_keys(groups, context.table_id, key, name, has_to_end())


def has_to_end() -> sa.ColumnElement[bool]:
    """Return the condition that nothing needs a group's row, and that this is not yet noted."""
    return sa.and_(groups.c.head.is_(None), groups.c.ended_at.is_(None), *needless())


def needless() -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition that a group's row is not needed when it has no messages."""
    return is_assigned(UNASSIGNED), groups.c.paused_until.is_(None), groups.c.pinned == 0


def _ack_held_back(
    context: TableContext, connection: SqlConnection, names: list[str], starts: Mapping[str, int]
) -> None:
    """Ack held-back messages with nothing before them, up to the first that is locked elsewhere.

    A later check of the groups, or the next claim, continues there. ``starts`` are as in `first_values`, if they are
    needed.
    """
    searches = searches_for(len(starts)) if starts else None
    first = _first_without_ack(context, searches)
    for row in connection.execute(first, {"groups": names, **first_values(starts)}).all():
        since = -FURTHEST if row.head is None else row.head
        values = {"of": row.group_id, "since": since, "until": MAX_NS if row.until is None else row.until}
        found = _known_ones(connection.execute(_held_and_locked(context), values).all())
        ours = {one.seq for one in found if one.ours}
        locked = min((one.position for one in found if one.seq not in ours), default=MAX_NS)
        seqs = sorted({one.seq for one in found if one.position < locked})
        if seqs:
            connection.execute(_acking_held_back(context), {"seqs": seqs})


@built_once(maxsize=256)
def _first_without_ack(context: TableContext, searches: int | None) -> sa.Select[Any, Any, Any]:
    """Select the groups whose first message has an ack, and the first message without one."""
    rows = context.rows
    held, unacked = (
        (first_of(context, rows.c.ack_held_at), first_of(context, rows.c.position, rows.c.ack_held_at.is_(None)))
        if searches is None
        else (
            first_in_group(context, searches, value="ack_held_at"),
            first_in_group(context, searches, " AND ack_held_at IS NULL"),
        )
    )
    columns = groups.c.group_id, groups.c.head, unacked.label("until")
    return sa.select(*columns).where(these_groups(context), held.is_not(None))


@built_once(maxsize=256)
def _held_and_locked(context: TableContext) -> sa.Select[*tuple[Any, ...]] | sa.CompoundSelect[*tuple[Any, ...]]:
    def held(rows: sa.FromClause) -> sa.Select[Any, Any]:
        return sa.select(rows.c.seq, rows.c.position).where(
            rows.c.group_id == sa.bindparam("of"),
            rows.c.position >= sa.bindparam("since", type_=sa.BigInteger),
            rows.c.position < sa.bindparam("until", type_=sa.BigInteger),
            rows.c.time_acked.is_(None),
            rows.c.ack_held_at.is_not(None),
        )

    return _seen_and_locked(context, held, context.rows.c.ack_held_at.is_not(None))


@built_once(maxsize=256)
def _acking_held_back(context: TableContext) -> sa.Update:
    acked = {"time_acked": context.backend.now_sql(), "time_next": None, "ack_held_at": None}
    return sa.update(context.rows).where(context.unacked()).values(acked)
