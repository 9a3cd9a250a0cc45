"""Claiming messages of a table with groups: each group goes to one consumer, its first messages first."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from waterclock.database.direct import Found
from waterclock.database.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.groups import consumers
from waterclock.tables.groups.heads import UNASSIGNED, first_of, is_assigned, settle, these_groups
from waterclock.tables.groups.routing import route_new
from waterclock.tables.messages.claiming_free import claim_free
from waterclock.tables.messages.dead_letters import bury, exhausted_reason
from waterclock.tables.messages.group_levels import FREE_COLUMNS, Level, Look, at_level, levels, look, room_of
from waterclock.tables.model.claim import Claimed, Wanted

_Row = Any


def claim_groups(context: TableContext, connection: sa.Connection, wanted: Wanted) -> tuple[list[Claimed], bool]:
    """Take messages from the start of groups that are free, or the consumer's own: highest priority first, then oldest.

    The consumer begins with its own groups. Where some messages are in no group, chance decides who goes first.

    Returns
    -------
    tuple
        What was taken, and whether there are new messages that were not looked at.
    """
    me = wanted.consumer or UNASSIGNED
    after = context.reached.now()
    count = None if context.options.groups == "exclusive" else _count_of(wanted.limit, context.reached.per_group)
    top = look(context, connection, me, after=after, count=count)
    now = top.now
    more = False
    if top.unrouted:
        # Only rows are inserted when messages are put; it is the consumers who route them to their groups.
        more = route_new(context, connection)
        now = context.backend.now(connection)
    room = None
    if context.options.groups == "exclusive":
        if not consumers.join(context, connection, me, wanted.max_groups, now):
            return [], False
        consumers.release_lapsed(context, connection, now)
        if context.options.group_idle is not None:
            consumers.release_idle(context, connection, now)
        if wanted.max_groups is not None:
            room = room_of(context, connection, me, wanted.max_groups)
    claim = _Claim(context, connection, wanted, me, now, room)
    is_old = top.unrouted or context.options.groups == "exclusive"
    claim.take_all(None if is_old else top)
    if len(claim.claimed) < wanted.limit:
        context.reached.forget()
        if after is not None and not top.unrouted and look(context, connection, me).unrouted:
            more = route_new(context, connection)
            claim.take_all(None)
    elif after is None and not top.unrouted:
        context.reached.note(top.newest or 0)
    if claim.claimed and context.options.groups == "exclusive":
        consumers.renew(context, connection, me, max(one.lease_until for one in claim.claimed))
    return claim.claimed, more


def _count_of(messages: int, per_group: int) -> int:
    # Looking at a group locks it: so at not many more than will do.
    return 1 + messages * 3 // (2 * per_group)


class _Claim:
    """One claim under way."""

    def __init__(
        self, context: TableContext, connection: sa.Connection, wanted: Wanted, me: str, now: int, room: int | None
    ) -> None:
        self._context = context
        self._connection = connection
        self._wanted = wanted
        self._me = me
        self._now = now
        self._room = room
        self._free: tuple[int | None, Sequence[_Row] | None] = (None, None)  # a priority, and what was locked of it
        self._seen: set[tuple[str, str, int | None]] = set()
        # One for all, so that groups whose messages were sent equally often go out in one statement.
        self._swing = random.uniform(-1, 1)  # noqa: S311  # not a secret
        self._exclusive = context.options.groups == "exclusive"
        self.claimed: list[Claimed] = []

    def take_all(self, top: Look | None) -> None:
        """Take what is due, highest priority first, as far as there is room; ``top`` is what is known of it already."""
        if top is not None:
            self._free = (top.of_unassigned, top.free)
        for level in levels(self._context, self._connection, self._me, top):
            self._take(level)
            if len(self.claimed) == self._wanted.limit:
                break

    def _take(self, level: Level) -> None:
        if self._context.options.ungrouped != "free":
            self._take_groups(level, self._left)
            return
        free_first = random.random() < 0.5  # noqa: PLR2004, S311  # a fair coin, no secret
        if free_first:
            self._take_free(level, max(1, self._left // 2))
        self._take_groups(level, self._left if free_first else max(1, self._left // 2))
        self._take_free(level, self._left)
        self._take_groups(level, self._left)

    @property
    def _left(self) -> int:
        return self._wanted.limit - len(self.claimed)

    def _take_free(self, level: Level, most: int) -> None:
        if most > 0:
            self.claimed += claim_free(self._context, self._connection, self._wanted, level.priority, most, self._now)

    def _take_groups(self, level: Level, most: int) -> None:
        upto = len(self.claimed) + most
        for who in level.whose:
            # At more only where the first ones gave little.
            per_group = self._context.reached.per_group
            while len(self.claimed) < upto:
                count = _count_of(upto - len(self.claimed), per_group)
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
        at = {"table_id": self._context.table_id, "who": who, "of": priority, "now": self._now}
        found = self._connection.execute(_free_groups(), {**at, "count": count + len(self._seen)})
        # What was seen may be the consumer's own, and so not among those found: then there are more than asked for.
        return [row for row in found if (row.group_id, row.assigned, row.head) not in self._seen][:count]

    def _take_from(self, free: Iterable[_Row], most: int, who: str) -> None:
        context, connection = self._context, self._connection
        chosen: list[str] = []
        expected = 0
        for group in free:
            if expected >= most:
                break
            chosen.append(group.group_id)
            self._seen.add((group.group_id, group.assigned, group.head))
            expected += max(1, group.tail - (group.next_position or group.tail) + 1)
        context.reached.per_group = max(1, min(expected, most) // len(chosen))
        if self._exclusive:
            self._revoke_lapsed(chosen)
        # Their columns are read a dozen times each, which SQLAlchemy's rows are slow at.
        found = connection.execute(
            _first_rows(context), {"groups": chosen, "count": most, "who": who, "now": self._now}
        )
        rows = found if isinstance(found, Found) else [SimpleNamespace(**row) for row in found.mappings()]
        lapsed = sorted({row.group_id for row in rows if row.claim_id is not None})
        if lapsed:
            # Those of them that are not sent again now must not be acked by their former consumer.
            connection.execute(_revoke_all(context), {"groups": lapsed})
        taken = self._hand_out(_by_group(chosen, rows), most)
        if who == UNASSIGNED and self._exclusive and taken:
            connection.execute(_assign(context), {"groups": taken, "who": self._me})
            if self._room is not None:
                self._room -= len(taken)
        # Also those of which nothing was taken: their first message was deleted by plain SQL, or is exhausted.
        settle(context, connection, chosen if self._exclusive else set(chosen) - set(taken))

    def _revoke_lapsed(self, chosen: list[str]) -> None:
        """Begin groups anew whose first message was not acked in time: those behind it may not overtake it."""
        context, connection = self._context, self._connection
        lapsed = list(connection.scalars(_lapsed(context), {"groups": chosen, "now": self._now}))
        if lapsed:
            connection.execute(_revoke_behind(context), {"groups": lapsed, "now": self._now})
            settle(context, connection, lapsed)

    def _hand_out(self, by_group: dict[str, list[_Row]], most: int) -> list[str]:
        """Give the consumer the first messages of groups; return which groups."""
        context, connection = self._context, self._connection
        ends = self._ends(list(by_group)) if self._exclusive else {}
        taken: dict[int, list[str]] = {}
        seqs: dict[int, list[int]] = {}
        buried: list[int] = []
        for group_id, members in by_group.items():
            living, exhausted = self._due_prefix(members)
            buried += exhausted
            first = living[:most]
            if not first:
                continue
            most -= len(first)
            # The longest wait of those that go out together, and no shorter than that of those that are out, so that
            # none returns while an earlier one is still out.
            wait = context.options.backoff.wait(max(row.epoch or 0 for row in first), self._swing)
            until = max(self._now + wait, ends.get(group_id, 0))
            taken.setdefault(until, []).append(group_id)
            seqs.setdefault(until, []).extend(row.seq for row in first)
            self.claimed += [Claimed(row, until) for row in first]
        if buried:
            bury(context, connection, buried, exhausted_reason(context))
        for until, chosen in seqs.items():
            mark = {"until": until, "by": self._wanted.claim_id, "who": self._wanted.consumer}
            values = {"seqs": chosen, **mark, "groups": sorted(taken[until])}
            if self._exclusive:
                connection.execute(_leave_out(context), values)
            else:
                context.sql.run_both(connection, _leave_out(context), _note_out(context), values)
        return sorted(name for names in taken.values() for name in names)

    def _ends(self, chosen: list[str]) -> dict[str, int]:
        return {
            row.group_id: row.until or 0
            for row in self._connection.execute(_last_ends(self._context), {"groups": chosen})
        }

    def _due_prefix(self, members: list[_Row]) -> tuple[list[_Row], list[int]]:
        """Choose what may go out, and which messages die of those that have used up their attempts."""
        # A message that is not due yet, or not sent any more, holds those behind it, else they would overtake it.
        options = self._context.options
        living: list[_Row] = []
        exhausted: list[int] = []
        for row in members:
            if row.time_next is not None and row.time_next > self._now:
                break
            if options.max_attempts is None or (row.epoch or 0) < options.max_attempts:
                living.append(row)
            elif options.on_exhausted == "dead_letter":
                exhausted.append(row.seq)
            else:
                break
        return living, exhausted


def _by_group(chosen: Iterable[str], rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    # In the order in which the groups were chosen, which a database would have to find anew.
    found: dict[str, list[_Row]] = {name: [] for name in chosen}
    for row in rows:
        found.setdefault(row.group_id, []).append(row)
    for members in found.values():
        members.sort(key=_position)
    return {name: members for name, members in found.items() if members}


_position = attrgetter("position")


@lru_cache(maxsize=1)
def _free_groups() -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*FREE_COLUMNS)
        .where(*at_level(), groups.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger))
        .order_by(groups.c.ready_at, groups.c.came)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=256)
def _first_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    # Positions of a group have no gaps but for acked messages, so the first ones are found without sorting a group.
    rows = context.rows
    belongs = sa.and_(
        rows.c.group_id == groups.c.group_id,
        rows.c.position >= groups.c.next_position,
        rows.c.position < groups.c.next_position + sa.bindparam("count"),
        rows.c.time_acked.is_(None),
        rows.c.ack_held_at.is_(None),
    )
    return context.sql.of_each(groups, (*columns_read(rows), rows.c.claim_id), belongs, rows.c.position).where(
        these_groups(context),
        is_assigned(sa.bindparam("who")),
        sa.func.coalesce(groups.c.paused_until, 0) <= sa.bindparam("now", type_=sa.BigInteger),
    )


def _out(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.time_acked.is_(None) & rows.c.claim_id.is_not(None)


@lru_cache(maxsize=256)
def _lapsed(context: TableContext) -> sa.Select[Any]:
    # Looked up group by group, here and below: for a join, a planner that guesses goes through all messages.
    rows = context.rows
    end = first_of(context, rows.c.time_next, rows.c.position == groups.c.head, rows.c.claim_id.is_not(None))
    over = end <= sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(groups.c.group_id).where(these_groups(context), over)


@lru_cache(maxsize=256)
def _revoke_behind(context: TableContext) -> sa.Update:
    rows = context.rows
    early = rows.c.time_next > sa.bindparam("now", type_=sa.BigInteger)
    return (
        sa.update(rows)
        .where(context.sql.any_of(rows.c.group_id, "groups"), _out(rows))
        # The epoch first: MariaDB reads what it has set in the same statement.
        .ordered_values(
            (rows.c.epoch, sa.case((early, rows.c.epoch - 1), else_=rows.c.epoch)),
            (rows.c.time_next, sa.case((early, sa.bindparam("now", type_=sa.BigInteger)), else_=rows.c.time_next)),
            (rows.c.claim_id, None),
        )
    )


@lru_cache(maxsize=256)
def _revoke_all(context: TableContext) -> sa.Update:
    rows = context.rows
    return sa.update(rows).where(context.sql.any_of(rows.c.group_id, "groups"), _out(rows)).values(claim_id=None)


@lru_cache(maxsize=256)
def _last_ends(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    until = (
        sa.select(sa.func.max(rows.c.time_next))
        .where(
            rows.c.group_id == groups.c.group_id,
            rows.c.position >= groups.c.head,
            rows.c.position < sa.func.coalesce(groups.c.next_position, groups.c.tail + 1),
            _out(rows),
        )
        .correlate(groups)
        .scalar_subquery()
    )
    return sa.select(groups.c.group_id, until.label("until")).where(these_groups(context))


@lru_cache(maxsize=256)
def _leave_out(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(context.unacked())
        .values(
            time_next=sa.bindparam("until"),
            epoch=sa.func.coalesce(rows.c.epoch, 0) + 1,
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )


@lru_cache(maxsize=256)
def _note_out(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(ready_at=sa.bindparam("until"))


@lru_cache(maxsize=256)
def _assign(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(assigned=sa.bindparam("who"))
