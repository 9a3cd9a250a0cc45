"""Claims in a table with groups: takes groups for one consumer, and leases the first messages of each.

`claim_sequenced` and `claim_exclusive`, the claims of the two policies, use this module.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.databases.table_dialect import adapted
from waterclock.tables.groups.consumers import is_new_to
from waterclock.tables.groups.first_positions import SEARCHED_AT_ONCE, first_values, searches_for, within_places
from waterclock.tables.groups.group_state import epoch_begun, is_assigned, lock_out, these_groups
from waterclock.tables.groups.routing import has_parts_left, route_new
from waterclock.tables.messages.claiming.bounded_groups import has_bounds
from waterclock.tables.messages.claiming.group_levels import (
    FREE_COLUMNS,
    Level,
    Look,
    at_level,
    is_ungrouped,
    levels,
    look,
)
from waterclock.tables.messages.finishing.dead_letters import bury, exhausted_reason, may_bury
from waterclock.tables.messages.finishing.expiring import expire, expire_first
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.epochs import after_claim_sql, before_claim
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import FURTHEST
from waterclock.tables.model.values.reading import value_of
from waterclock.time import MIN_NS

_Row = Any


class GroupClaim(ABC):
    """A running claim: by priority, then by age; in each priority the consumer's own groups first.

    If there are also ungrouped messages, a random choice decides which go first.
    """

    def __init__(self, context: TableContext, connection: SqlConnection, wanted: Wanted, part: int | None) -> None:
        self._context = context
        self._part = part
        self._has_bounds = context.sql.is_bounded or (context.sql.begins_at_constants and has_bounds(context))
        self._connection = connection
        self._wanted = wanted
        self._me = wanted.consumer or UNASSIGNED
        self._mine = {"by": wanted.claim_id, "who": wanted.consumer}
        self._now = 0
        self._after = context.reached.now()
        self._room: int | None = None  # room for unassigned groups; None: unlimited
        self._free: tuple[int | None, Sequence[_Row] | None] = (None, None)  # a priority, and its locked groups
        self._seen: set[tuple[str, str, int | None]] = set()
        self._starts: dict[str, int | None] = {}  # the first unclaimed seq of each chosen group
        # One for all, so that one statement can hand out groups whose messages were sent equally often.
        self._swing = random.uniform(-1, 1)  # noqa: S311  # not a secret
        self._expired = 0
        self.claimed: list[Claimed] = []  # the claimed messages
        self.more = False  # whether there are messages that were not examined
        self.is_changed = False  # whether it has routed messages since it looked
        self.only_routes = False  # whether other transactions must route more messages before it claims

    @abstractmethod
    def _take_from(self, free: Iterable[_Row], most: int, who: str) -> None:
        """Claim up to ``most`` messages from the start of groups that the transaction has locked."""

    def route_new(self, *, locks: bool) -> Look:
        """Look for messages, and route new ones. If ``locks``, lock the first groups at once if nothing is new."""
        context, connection = self._context, self._connection
        may_lock = locks and self._after is not None and context.sql.locks_in_parts
        count = count_of(self._wanted.limit, context.reached.per_group) if may_lock else None
        top = look(context, connection, self._me, after=self._after, count=count)
        self._now = top.now
        if top.unrouted:
            # Putting only inserts rows; consumers route them to their groups.
            more = route_new(context, connection)
            self.is_changed = more is not None
            self.more = bool(more)
            self.only_routes = self.more and has_parts_left(context, self._part)
            if self.is_changed:
                self._now = context.backend.now(connection)
        return top

    def take_all(self, top: Look, *, is_known: bool) -> None:
        """Claim due messages while there is room; note how far new messages were examined.

        ``top`` is the state before new messages were routed. ``is_known`` says whether that has not changed since.
        """
        context, connection = self._context, self._connection
        self._take_levels(top if is_known else None)
        context.marks.had_enough = len(self.claimed) == self._wanted.limit
        if not context.marks.had_enough:
            context.reached.forget()
            if self._after is not None and not top.unrouted and look(context, connection, self._me).unrouted:
                self.more = bool(route_new(context, connection))
                self._take_levels(None)
        elif self._after is None and not top.unrouted:
            context.reached.note(top.newest or 0)
        self.more |= self._expired > 0

    def _take_levels(self, top: Look | None) -> None:
        if top is not None and not top.unrouted:  # otherwise it has locked no groups
            self._free = (top.of_unassigned, top.free)
        take = self._take_both if self._context.options.ungrouped == "free" else self._take_groups
        for level in levels(self._context, self._connection, self._me, top):
            for who in level.whose if self._has_bounds else ():
                self._context.reached.groups.learn(who, level.priority)
            take(level, self._wanted.limit - len(self.claimed))
            if len(self.claimed) == self._wanted.limit:
                break

    def _take_both(self, level: Level, most: int) -> None:
        ungrouped_first = random.random() < 0.5  # noqa: PLR2004, S311  # a fair coin, no secret
        if ungrouped_first:
            self._take_ungrouped(level, max(1, most // 2))
        self._take_groups(level, self._left if ungrouped_first else max(1, most // 2))
        self._take_ungrouped(level, self._left)
        self._take_groups(level, self._left)

    @property
    def _left(self) -> int:
        return self._wanted.limit - len(self.claimed)

    def _take_ungrouped(self, level: Level, most: int) -> None:
        if most <= 0:
            return
        context, connection, wanted = self._context, self._connection, self._wanted
        due = {"of": level.priority, "now": self._now, "count": most}
        found = connection.execute(_ungrouped_due(context), due).all()
        expired = [row.seq for row in found if row.expires_at is not None and row.expires_at <= self._now]
        if expired and (context.options.on_expired != "dead_letter" or may_bury(self._context)):
            self._expired += expire(context, connection, expired)
        if expired:
            found = [row for row in found if row.expires_at is None or row.expires_at > self._now]
        most_attempts = context.options.max_attempts
        if most_attempts is not None:
            exhausted = [row.seq for row in found if (row.epoch or 0) >= most_attempts]
            if exhausted and may_bury(self._context):
                bury(context, connection, exhausted, exhausted_reason(context))
            if exhausted:
                found = [row for row in found if row.seq not in exhausted]
        length = wanted.lease_length.of
        claimed = [Claimed(row, self._now + length(row.epoch or 0, random.uniform(-1, 1))) for row in found]  # noqa: S311  # no secret
        if claimed:
            values = [{"of": one.row.seq, "until": one.lease_until, **self._mine} for one in claimed]
            connection.execute(_leave_ungrouped(context), values)
        self.claimed += claimed

    def _take_groups(self, level: Level, most: int) -> None:
        upto = len(self.claimed) + most
        for who in level.whose:
            # More groups are read only if the first ones had few messages.
            per_group = self._context.reached.per_group
            while len(self.claimed) < upto and self._expired < _EXPIRED_AT_MOST:
                count = count_of(upto - len(self.claimed), per_group)
                per_group = 1
                if who == UNASSIGNED and self._room is not None:
                    count = min(count, self._room)
                found = self._free_groups(level.priority, who, count) if count > 0 else []
                if not found:
                    break
                self._take_from(found, upto - len(self.claimed), who)

    def _free_groups(self, priority: int, who: str, count: int) -> Sequence[_Row]:
        locked_at, locked = self._free
        if who == UNASSIGNED and locked_at == priority and locked is not None:
            self._free = (None, None)
            return locked
        context = self._context
        at = {"table_id": context.table_id, "who": who, "of": priority, "now": self._now}
        owns = context.options.groups == "exclusive"
        if owns:
            at |= {"me": self._me, "process": context.backend.session}
        most = count + len(self._seen)
        at["low"] = context.reached.groups.low(who, priority) if self._has_bounds else MIN_NS
        if context.sql.locks_by_key:
            found = self._lock_by_key(owns, at, most)
        else:
            found = self._connection.execute(_free_groups(owns=owns), {**at, "count": most}).all()
        # The groups may be the consumer's own, and so not among those found: then there are more than requested.
        if not self._seen:
            return found
        return [row for row in found if (row.group_id, row.assigned, row.head) not in self._seen][:count]

    def _lock_by_key(self, owns: bool, at: dict[str, Any], count: int) -> Sequence[_Row]:
        """Lock due groups that are not locked elsewhere, in the order of a claim.

        If other consumers have locked some of those found, a search that locks finds others behind them. It passes dead
        entries, but to search again without locks would keep more and more groups from other claims.
        """
        seen = self._connection.execute(_free_by_key(owns=owns), {**at, "count": count}).all()
        found = [row for row in seen if row.group_id is not None]
        if len(found) < len(seen) == count:
            return self._connection.execute(_free_groups(owns=owns), {**at, "count": count}).all()
        return sorted(found, key=_by_due_time)

    def _choose(self, free: Iterable[_Row], most: int) -> list[str]:
        """Choose as many groups as probably have ``most`` messages."""
        chosen: list[str] = []
        expected = 0
        for group in free:
            if expected >= most:
                break
            chosen.append(group.group_id)
            self._starts[group.group_id] = group.next_position
            self._seen.add((group.group_id, group.assigned, group.head))
            expected += max(1, group.tail - (group.next_position or group.tail) + 1)
        self._context.reached.per_group = max(1, min(expected, most) // len(chosen))
        return chosen

    def _first_messages(self, chosen: list[str], most: int, who: str) -> dict[str, list[_Row]]:
        """Return the next messages of groups, by group, up to the first that is locked elsewhere."""
        context, connection = self._context, self._connection
        which = {"groups": chosen, "count": most, "who": who, "now": self._now}
        searches = None
        if context.sql.begins_at_constants and len(chosen) <= SEARCHED_AT_ONCE:
            searches, which = searches_for(len(chosen)), which | self._places_of(chosen, most)
        # Their columns are read a dozen times each, and SQLAlchemy's rows are slow.
        found = connection.execute(_first_rows(context, searches), which)
        rows = [SimpleNamespace(**row) for row in found.mappings()] if isinstance(found, sa.CursorResult) else found
        rows = [row for row in rows if row.seq is not None]
        # In the order in which the groups were chosen, which a database would have to sort again.
        by_group: dict[str, list[_Row]] = dict.fromkeys(chosen, _NONE)
        lapsed: set[str] = set()
        for row in rows:
            if by_group[row.group_id]:
                by_group[row.group_id].append(row)
            else:
                by_group[row.group_id] = [row]
            if row.claim_id is not None:
                lapsed.add(row.group_id)
        for members in by_group.values():
            members.sort(key=_position)
        if context.options.max_attempts is not None:
            names = [column.name for column in columns_read(context.rows)]
            for name in lapsed:
                first, *behind = by_group[name]
                by_group[name] = [first, *(_as_not_begun(names, row) for row in behind)]
        if lapsed:
            # If they are not sent again now, their former consumer must no longer ack them.
            out = lock_out(context, connection, lapsed)
            by_group |= dict.fromkeys(lapsed.difference(out.names), _NONE)
            connection.execute(_revoke_all(context), {"seqs": out.seqs})
        if not context.sql.one_writer:
            self._end_before_locked(by_group, searches, which)
        return by_group

    def _places_of(self, chosen: list[str], most: int) -> dict[str, Any]:
        """Return the positions of groups from which and up to which messages are searched."""
        starts = {name: self._starts[name] for name in chosen}
        ends = {name: FURTHEST if start is None else start + most for name, start in starts.items()}
        return first_values({name: -FURTHEST if start is None else start for name, start in starts.items()}, ends)

    def _end_before_locked(self, by_group: dict[str, list[_Row]], searches: int | None, which: dict[str, Any]) -> None:
        """Drop messages behind one that another transaction has locked."""
        gaps = [
            name
            for name, members in by_group.items()
            if members and members[-1].position - (self._starts[name] or 0) >= len(members)
        ]
        if not gaps:
            return
        locked: dict[str, int] = {}
        ours = {row.seq for name in gaps for row in by_group[name]}
        for row in self._connection.execute(_first_places(self._context, searches), {**which, "groups": gaps}):
            if row.seq not in ours:
                locked[row.group_id] = min(row.position, locked.get(row.group_id, row.position))
        for name, place in locked.items():
            by_group[name] = [row for row in by_group[name] if row.position < place]

    def _due_first(self, by_group: dict[str, list[_Row]], most: int) -> dict[str, list[_Row]]:
        """Choose the messages of groups to send; remove expired ones, and move exhausted ones to the dead letters."""
        chosen: dict[str, list[_Row]] = {}
        buried: list[int] = []
        for group_id, members in by_group.items():
            if any(row.expires_at is not None and row.expires_at <= self._now for row in members):
                if self._context.options.on_expired == "dead_letter" and not may_bury(self._context):
                    continue
                self._expired += expire_first(self._context, self._connection, group_id, self._now, len(members))
            living, exhausted = self._due_prefix(members)
            if exhausted and not may_bury(self._context):
                continue  # it blocks its group
            buried += exhausted
            if living and most:
                chosen[group_id] = living[:most]
                most -= len(chosen[group_id])
        if buried:
            bury(self._context, self._connection, buried, exhausted_reason(self._context))
        return chosen

    def _lease_end(self, members: list[_Row]) -> int:
        # Messages that go out together all get the longest of their leases.
        sent = max([row.epoch or 0 for row in members])
        lease_length = self._context.lease_length
        return self._now + (lease_length.of(sent, self._swing) if sent else lease_length.shortest)

    def _due_prefix(self, members: list[_Row]) -> tuple[list[_Row], list[int]]:
        """Choose the messages that may be sent, and the exhausted ones that die."""
        # A message that is not due yet, or no longer sent, holds back later ones, which would overtake it.
        options = self._context.options
        living: list[_Row] = []
        exhausted: list[int] = []
        for row in members:
            if row.expires_at is not None and row.expires_at <= self._now:
                continue  # it is gone
            if row.time_next is not None and row.time_next > self._now:
                break
            if options.max_attempts is None or (row.epoch or 0) < options.max_attempts:
                living.append(row)
            elif options.on_exhausted == "dead_letter":
                exhausted.append(row.seq)
            else:
                break
        return living, exhausted


def count_of(messages: int, per_group: int) -> int:
    """Return how many groups to look at for so many messages."""
    # Looking at a group locks it, so look at few more than needed.
    return 1 + messages * 3 // (2 * per_group)


def _as_not_begun(names: Iterable[str], row: _Row) -> _Row:
    """Return a message behind the first of its group as `epoch_begun` leaves it."""
    if row.claim_id is None:
        return row
    before = {"epoch": before_claim(row.epoch), "claim_id": None}
    return SimpleNamespace(**{name: value_of(row, name) for name in names} | before)


_EXPIRED_AT_MOST = 10
"""Number of expired messages after which a claim looks for no more groups.

The next transaction continues, after many expired messages have been removed at once, without looking at each group.
"""

_NONE: list[_Row] = []
_position = attrgetter("position")
_by_due_time = attrgetter("due_at", "nth")


@built_once(maxsize=2)
def _free_groups(*, owns: bool) -> sa.Select[*tuple[Any, ...]]:
    return _first_due(*FREE_COLUMNS, *_owned(owns=owns)).with_for_update(skip_locked=True)


@built_once(maxsize=2)
def _free_by_key(*, owns: bool) -> sa.Select[*tuple[Any, ...]]:
    """Search without locks, and lock the groups by their keys: see `TableDialect.locks_by_key`."""
    # With a column that the index lacks: then the server checks the end of the range before it reads a group's row.
    columns = groups.c.table_id, groups.c.group_id, groups.c.ready_at, groups.c.first_seq, groups.c.head
    found = adapted(groups.alias("unlocked"), groups)(_first_due(*columns)).subquery("found")
    is_found = (groups.c.table_id == found.c.table_id) & (groups.c.group_id == found.c.group_id)
    still = (
        is_assigned(sa.bindparam("who")),
        groups.c.priority == sa.bindparam("of"),
        groups.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger),
    )
    seen = found.c.ready_at.label("due_at"), found.c.first_seq.label("nth")
    # Only an outer join makes the server begin with the groups that were found.
    return (
        sa.select(*FREE_COLUMNS, *_owned(owns=owns), *seen)
        .select_from(sa.outerjoin(found, groups, sa.and_(is_found, *still)))
        .with_hint(groups, "FORCE INDEX (PRIMARY)")
        .with_for_update(skip_locked=True)
    )


def _first_due(*columns: sa.ColumnElement[Any]) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*columns)
        .where(
            *at_level(),
            groups.c.ready_at >= sa.bindparam("low", type_=sa.BigInteger),
            groups.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(groups.c.ready_at, groups.c.first_seq)
        .limit(sa.bindparam("count"))
    )


def _owned(*, owns: bool) -> tuple[sa.ColumnElement[Any], ...]:
    me, process = sa.bindparam("me", type_=groups.c.assigned.type), sa.bindparam("process", type_=sa.BigInteger)
    return (is_new_to(me, process).label("is_new"), groups.c.had_first) if owns else ()


@built_once(maxsize=256)
def _ungrouped_due(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    return (
        sa.select(*columns_read(rows))
        .where(
            is_ungrouped(context),
            rows.c.priority == sa.bindparam("of"),
            rows.c.time_next <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@built_once(maxsize=256)
def _leave_ungrouped(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(rows.c.seq == sa.bindparam("of"), not_acked(rows))
        .values(
            time_next=sa.bindparam("until"),
            epoch=after_claim_sql(rows.c.epoch),
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )


@built_once(maxsize=256)
def _first_rows(context: TableContext, searches: int | None) -> sa.Select[*tuple[Any, ...]]:
    """Return the statement that locks the first messages; ``searches`` as in `first_values`, None: no constants."""
    return _first(context, columns_read(context.rows), searches, skip_locked=True)


@built_once(maxsize=256)
def _first_places(context: TableContext, searches: int | None) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    return _first(context, (rows.c.seq, rows.c.group_id, rows.c.position), searches)


def _first(
    context: TableContext, columns: Sequence[sa.Column[Any]], searches: int | None, *, skip_locked: bool = False
) -> sa.Select[*tuple[Any, ...]]:
    # Positions of a group have no gaps except for acked messages, so the first are found without sorting.
    rows = context.rows
    name: sa.ColumnElement[str] = rows.c.group_id
    which: list[sa.ColumnElement[bool]] = []
    if searches is not None:
        # With the name itself, the server would read all entries of a group instead of the ranges of constants.
        name, which = sa.func.coalesce(name), [within_places(rows, searches)]
    belongs = sa.and_(
        name == groups.c.group_id,
        rows.c.position >= groups.c.next_position,
        rows.c.position < groups.c.next_position + sa.bindparam("count"),
        rows.c.time_acked.is_(None),
        rows.c.ack_held_at.is_(None),
        *which,
    )
    theirs = sa.and_(
        these_groups(context),
        is_assigned(sa.bindparam("who")),
        sa.func.coalesce(groups.c.paused_until, 0) <= sa.bindparam("now", type_=sa.BigInteger),
    )
    return context.sql.of_each(groups, columns, belongs, rows.c.position, theirs, skip_locked=skip_locked)


@built_once(maxsize=256)
def _revoke_all(context: TableContext) -> sa.Update:
    # By key, here and elsewhere: by group, MariaDB would wait for any locked message of the group.
    revoking = sa.update(context.rows).where(context.unacked()).values(claim_id=None)
    return revoking if context.options.max_attempts is None else revoking.values(epoch=epoch_begun(context))


@built_once(maxsize=256)
def leave_out(context: TableContext) -> sa.Update:
    """Assign the messages bound as ``seqs`` to a consumer."""
    rows = context.rows
    return (
        sa.update(rows)
        .where(context.unacked())
        .values(
            time_next=sa.bindparam("until"),
            epoch=after_claim_sql(rows.c.epoch),
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )
