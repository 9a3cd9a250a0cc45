"""Claiming messages of a table with groups: each group goes to one consumer, its first messages first."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.database.table_catalogue import groups
from waterclock.tables.claiming.claimed import Claimed, Wanted
from waterclock.tables.claiming.claiming_free import claim_free, free_due_times, free_priority
from waterclock.tables.claiming.claiming_rows import ABOVE_EVERY_PRIORITY, columns_read
from waterclock.tables.context import TableContext
from waterclock.tables.dead_letters import bury, exhausted_reason
from waterclock.tables.groups import consumers
from waterclock.tables.groups.grouping import ANYBODY, settle, these_groups
from waterclock.tables.groups.routing import has_unrouted, route

_Row = sa.Row[*tuple[Any, ...]]


def claim_groups(context: TableContext, connection: sa.Connection, wanted: Wanted) -> list[Claimed]:
    """Take messages from the start of groups that are free, or the consumer's own: highest priority first, then oldest.

    The consumer begins with its own groups. Where some messages are in no group, chance decides who goes first.
    """
    # Only rows are inserted when messages are put; it is the consumers who route them to their groups.
    route(context, connection)
    now = context.backend.now(connection)
    me = wanted.consumer or ANYBODY
    room = None
    if context.options.groups == "exclusive":
        if not consumers.join(context, connection, me, wanted.max_groups, now):
            return []
        consumers.release_lapsed(context, connection, now)
        if context.options.group_idle is not None:
            consumers.release_idle(context, connection, now)
        if wanted.max_groups is not None:
            room = wanted.max_groups - _count_of(context, connection, me)
    claim = _Claim(context, connection, wanted, me, now, room)
    for priority in _priorities(context, connection, me):
        claim.take(priority)
        if len(claim.claimed) == wanted.limit:
            break
    if claim.claimed and context.options.groups == "exclusive":
        consumers.renew(context, connection, me, max(one.lease_until for one in claim.claimed))
    return claim.claimed


def group_due_times(
    context: TableContext, connection: sa.Connection, consumer: str | None, max_groups: int | None
) -> Iterator[int]:
    """Find when something may be due for a consumer, ns. Reads only."""
    if has_unrouted(context, connection):
        yield 0
    me = consumer or ANYBODY
    who = [ANYBODY, me]
    if context.options.groups == "exclusive":
        yield consumers.sign_of_life_due(context, connection, me)
        lapse = consumers.next_lapse(context, connection)
        if lapse is not None:
            yield lapse
        if max_groups is not None and _count_of(context, connection, me) >= max_groups:
            who = [me]
    for priority in _priorities(context, connection, me):
        for one in who:
            at = {"table_id": context.table_id, "who": one, "of": priority}
            found = connection.execute(_earliest_group(), at).scalar()
            if found is not None:
                yield found
        if context.options.ungrouped == "free":
            yield from free_due_times(context, connection, priority)


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
        self._seen: set[tuple[str, str, int | None]] = set()
        self._exclusive = context.options.groups == "exclusive"
        self.claimed: list[Claimed] = []

    def take(self, priority: int) -> None:
        """Take what is due at a priority, as far as there is room."""
        if self._context.options.ungrouped != "free":
            self._take_groups(priority, self._left)
            return
        free_first = random.random() < 0.5  # noqa: PLR2004, S311  # a fair coin, no secret
        if free_first:
            self._take_free(priority, max(1, self._left // 2))
        self._take_groups(priority, self._left if free_first else max(1, self._left // 2))
        self._take_free(priority, self._left)
        self._take_groups(priority, self._left)

    @property
    def _left(self) -> int:
        return self._wanted.limit - len(self.claimed)

    def _take_free(self, priority: int, most: int) -> None:
        if most > 0:
            self.claimed += claim_free(self._context, self._connection, self._wanted, priority, most, self._now)

    def _take_groups(self, priority: int, most: int) -> None:
        upto = len(self.claimed) + most
        for who in (self._me, ANYBODY):
            while len(self.claimed) < upto:
                count = upto - len(self.claimed)
                if who == ANYBODY and self._room is not None:
                    count = min(count, self._room)
                found = self._free_groups(priority, who, count) if count > 0 else []
                if not found:
                    break
                self._take_from(found, upto - len(self.claimed), who)

    def _free_groups(self, priority: int, who: str, count: int) -> Sequence[_Row]:
        at = {"table_id": self._context.table_id, "who": who, "of": priority, "now": self._now}
        found = self._connection.execute(_free_groups(), {**at, "count": count + len(self._seen)})
        return [row for row in found if (row.group_id, row.assigned, row.head) not in self._seen]

    def _take_from(self, found: Iterable[_Row], most: int, who: str) -> None:
        context, connection = self._context, self._connection
        chosen: list[str] = []
        expected = 0
        for group in found:
            if expected >= most:
                break
            chosen.append(group.group_id)
            self._seen.add((group.group_id, group.assigned, group.head))
            expected += max(1, group.tail - (group.next_position or group.tail) + 1)
        if self._exclusive:
            self._revoke_lapsed(chosen)
        rows = connection.execute(
            _first_rows(context), {"groups": chosen, "count": most, "who": who, "now": self._now}
        ).all()
        lapsed = sorted({row.group_id for row in rows if row.lease is not None})
        if lapsed:
            # Those of them that are not sent again now must not be acked by their former consumer.
            connection.execute(_revoke_all(context), {"groups": lapsed})
        taken = self._hand_out(rows, most)
        if who == ANYBODY and self._exclusive and taken:
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

    def _hand_out(self, rows: Iterable[_Row], most: int) -> list[str]:
        """Give the consumer the first messages of groups; return which groups."""
        context, connection = self._context, self._connection
        by_group = _by_group(rows)
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
            wait = context.options.backoff.wait(max(row.epoch or 0 for row in first), random.uniform(-1, 1))  # noqa: S311  # not a secret
            until = max(self._now + wait, ends.get(group_id, 0))
            taken.setdefault(until, []).append(group_id)
            seqs.setdefault(until, []).extend(row.seq for row in first)
            self.claimed += [Claimed(row, until) for row in first]
        if buried:
            bury(context, connection, buried, exhausted_reason(context))
        for until, chosen in seqs.items():
            mark = {"until": until, "by": self._wanted.lease, "who": self._wanted.consumer}
            connection.execute(_leave_out(context), {"seqs": chosen, **mark})
            if not self._exclusive:
                connection.execute(_note_out(context), {"groups": sorted(taken[until]), "until": until})
        return sorted(name for names in taken.values() for name in names)

    def _ends(self, chosen: list[str]) -> dict[str, int]:
        return {
            row.group_id: row.until for row in self._connection.execute(_last_ends(self._context), {"groups": chosen})
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


def _by_group(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.group_id, []).append(row)
    return found


def _count_of(context: TableContext, connection: sa.Connection, me: str) -> int:
    return connection.execute(
        sa.select(sa.func.count()).where(groups.c.table_id == context.table_id, groups.c.assigned == me)
    ).scalar_one()


def _priorities(context: TableContext, connection: sa.Connection, me: str) -> Iterator[int]:
    # One by one from the top: usually there is one, and a caller that has enough asks no further.
    below = ABOVE_EVERY_PRIORITY
    while True:
        at = {"table_id": context.table_id, "below": below}
        found = [*connection.execute(_next_priorities(), {**at, "me": me, "anybody": ANYBODY}).one()]
        if context.options.ungrouped == "free":
            found.append(free_priority(context, connection, below))
        levels = [priority for priority in found if priority is not None]
        if not levels:
            return
        below = max(levels)
        yield below


@lru_cache(maxsize=1)
def _next_priorities() -> sa.Select[Any, Any]:
    def greatest(who: str) -> sa.ScalarSelect[Any]:
        return (
            sa.select(groups.c.priority)
            .where(
                groups.c.table_id == sa.bindparam("table_id"),
                groups.c.assigned == sa.bindparam(who, type_=groups.c.assigned.type),
                groups.c.priority < sa.bindparam("below", type_=sa.BigInteger),
            )
            .order_by(groups.c.priority.desc())
            .limit(1)
            .scalar_subquery()
        )

    return sa.select(greatest("anybody").label("of_anybody"), greatest("me").label("of_mine"))


def _level() -> tuple[sa.ColumnElement[bool], ...]:
    return (
        groups.c.table_id == sa.bindparam("table_id"),
        groups.c.assigned == sa.bindparam("who"),
        groups.c.priority == sa.bindparam("of"),
    )


@lru_cache(maxsize=1)
def _free_groups() -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(groups.c.group_id, groups.c.assigned, groups.c.head, groups.c.next_position, groups.c.tail)
        .where(*_level(), groups.c.ready_at <= sa.bindparam("now", type_=sa.BigInteger))
        .order_by(groups.c.ready_at, groups.c.group_id)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


@lru_cache(maxsize=1)
def _earliest_group() -> sa.Select[Any]:
    return (
        sa.select(groups.c.ready_at)
        .where(*_level(), groups.c.ready_at.is_not(None))
        .order_by(groups.c.ready_at)
        .limit(1)
    )


@lru_cache(maxsize=256)
def _first_rows(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    # Positions of a group have no gaps but for acked messages, so the first ones are found without sorting a group.
    rows = context.rows
    conditions = [
        rows.c.group_id == groups.c.group_id,
        rows.c.position >= groups.c.next_position,
        rows.c.position < groups.c.next_position + sa.bindparam("count"),
        rows.c.time_acked.is_(None),
        rows.c.held_at.is_(None),
    ]
    return (
        sa.select(*columns_read(rows), rows.c.lease)
        .join_from(groups, rows, sa.and_(*conditions))
        .where(
            these_groups(context),
            groups.c.assigned == sa.bindparam("who"),
            sa.func.coalesce(groups.c.paused_until, 0) <= sa.bindparam("now", type_=sa.BigInteger),
        )
        .order_by(groups.c.ready_at, groups.c.group_id, rows.c.position)
    )


def _out(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.time_acked.is_(None) & rows.c.lease.is_not(None)


@lru_cache(maxsize=256)
def _lapsed(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    at_head = (rows.c.group_id == groups.c.group_id) & (rows.c.position == groups.c.head)
    over = rows.c.time_next <= sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(groups.c.group_id).join_from(groups, rows, at_head).where(these_groups(context), _out(rows), over)


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
            (rows.c.lease, None),
        )
    )


@lru_cache(maxsize=256)
def _revoke_all(context: TableContext) -> sa.Update:
    rows = context.rows
    return sa.update(rows).where(context.sql.any_of(rows.c.group_id, "groups"), _out(rows)).values(lease=None)


@lru_cache(maxsize=256)
def _last_ends(context: TableContext) -> sa.Select[Any, Any]:
    rows = context.rows
    between = (rows.c.position >= groups.c.head) & (
        rows.c.position < sa.func.coalesce(groups.c.next_position, groups.c.tail + 1)
    )
    return (
        sa.select(groups.c.group_id, sa.func.max(rows.c.time_next).label("until"))
        .join_from(groups, rows, (rows.c.group_id == groups.c.group_id) & between)
        .where(these_groups(context), _out(rows))
        .group_by(groups.c.group_id)
    )


@lru_cache(maxsize=256)
def _leave_out(context: TableContext) -> sa.Update:
    rows = context.rows
    return (
        sa.update(rows)
        .where(context.sql.any_of(rows.c.seq, "seqs"))
        .values(
            time_next=sa.bindparam("until"),
            epoch=sa.func.coalesce(rows.c.epoch, 0) + 1,
            lease=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )


@lru_cache(maxsize=256)
def _note_out(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(ready_at=sa.bindparam("until"))


@lru_cache(maxsize=256)
def _assign(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(assigned=sa.bindparam("who"))
