"""Claims from a table with groups in one round trip, on a database that takes several statements at once.

The first statement locks groups and stores their names for the next statements. Each statement has its own snapshot. So
the second statement, which claims the messages of those groups, sees them in a state that no other transaction can
change. `claim_groups_in_steps` handles rare cases: exhausted messages, ended leases, consumers that come or go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_all
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import ABOVE_EVERY_PRIORITY, columns_read
from waterclock.tables.groups import consumers
from waterclock.tables.groups.group_state import is_assigned, is_out, settling_claimed
from waterclock.tables.groups.routing import is_much_new, routing_at_once
from waterclock.tables.groups.settled_values import first_of
from waterclock.tables.messages.claiming.bounded_levels import firsts_of, highest_of, low_of, values_of
from waterclock.tables.messages.claiming.claim_groups_in_steps import count_of
from waterclock.tables.messages.claiming.group_levels import FREE_COLUMNS, looking, note_look
from waterclock.tables.messages.claiming.lost_claims import TakenBefore, trying
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.epochs import after_claim_sql
from waterclock.tables.model.row_conditions import not_acked
from waterclock.time import MAX_NS

_BEFORE = (
    "time_next",
    "epoch",
    "claim_id",
)  # columns whose old values a delivery needs; RETURNING returns the new ones


@dataclass(slots=True)
class _Asking:
    """Parameters of the next round trip."""

    below: int  # look at priorities below this one
    after: int | None  # look for new messages from this seq on; None: from the first
    per_group: int  # how many messages a group is expected to have
    new: int | None = None  # the seq of the first message that must be routed before; None: none
    known: bool = False  # whether new messages have been looked for already


@dataclass(frozen=True, slots=True)
class _RoundTrip:
    """The result of a round trip."""

    top: Any  # the look at the table
    free: Sequence[Any]  # the groups that were locked, of ``count`` requested
    count: int
    given: Sequence[Any]  # the claimed messages, in order
    is_new: bool  # whether nothing was claimed because new messages must be routed before

    @property
    def taken(self) -> int:
        """Return how many unassigned groups were claimed."""
        gave = {row[-2] for row in self.given}
        return sum(row.is_for_any and row.nth in gave for row in self.free)

    def is_odd(self, *, enough: bool) -> bool:
        """Return whether a due group yielded no message although there was room for its first one."""
        gave = {row[-2] for row in self.given}
        last = max(gave, default=0)
        return any(row.nth not in gave and (not enough or row.nth < last) for row in self.free if row.is_chosen)


def claim_pipelined(context: TableContext, wanted: Wanted) -> tuple[list[Claimed], bool]:
    """Claim due messages until a rare case occurs.

    Returns the claimed messages, and whether a stepwise claim must look for the rest.
    """
    reached = context.reached
    asking = _Asking(ABOVE_EVERY_PRIORITY, reached.now(), reached.per_group)
    claimed: list[Claimed] = []
    taken = 0  # unassigned groups claimed
    while True:
        left = wanted.limit - len(claimed)
        seen = _ask(context, wanted, asking, claimed, taken)
        if isinstance(seen, TakenBefore):
            return [*claimed, *seen.claimed], False
        if not seen.top.may_claim or (seen.is_new and not _may_route(context, seen)):
            return claimed, True
        if seen.is_new:
            asking = _Asking(ABOVE_EVERY_PRIORITY, asking.after, reached.per_group, seen.top.first_new)
            continue
        claimed = _joined(claimed, seen, owned=context.options.groups == "exclusive")
        taken += seen.taken
        if seen.free:
            reached.per_group = _per_group(seen.free, left)
        enough = len(claimed) == wanted.limit
        if seen.is_odd(enough=enough):
            return claimed, True
        if enough:
            context.marks.had_enough = True
            # New messages may have stayed unrouted because another transaction has locked them or their groups.
            if asking.after is None and asking.new is None and seen.top.first_new is None:
                reached.note(seen.top.newest or 0)
            return claimed, False
        further = _next(context, asking, seen)
        if further is None:
            context.marks.had_enough = False
            reached.forget()
            return claimed, False
        asking = further


def _may_route(context: TableContext, seen: _RoundTrip) -> bool:
    return not seen.top.is_much_new and not context.refused_groups.some and context.options.ack_order != "hold"


def _joined(claimed: Sequence[Claimed], seen: _RoundTrip, *, owned: bool) -> list[Claimed]:
    # If this process was suspended in between, it may have claimed some messages a second time.
    again = {row.seq for row in seen.given}
    first = {row.nth: row.had_first for row in seen.free if not row.is_new} if owned else {}
    given = [
        Claimed(row, row[-1], is_first=owned and row.position == first.setdefault(row[-2], row.position))
        for row in seen.given
    ]
    return [*(one for one in claimed if one.row.seq not in again), *given]


def _next(context: TableContext, asking: _Asking, seen: _RoundTrip) -> _Asking | None:
    """Return the next request if there were not enough messages; None if all was examined."""
    per_group = context.reached.per_group
    if len(seen.free) == seen.count:
        return _Asking(asking.below, asking.after, 1, known=True)  # more groups, because these had few messages
    if seen.top.is_more_below:
        return _Asking(seen.top.level, asking.after, per_group, known=True)
    if asking.after is not None and not asking.known and asking.new is None:
        return _Asking(ABOVE_EVERY_PRIORITY, None, per_group)
    return None


def _ask(
    context: TableContext, wanted: Wanted, asking: _Asking, claimed: Sequence[Claimed], taken: int
) -> _RoundTrip | TakenBefore:
    left = wanted.limit - len(claimed)
    count = count_of(left, asking.per_group)
    anyhow = asking.known or asking.new is not None
    me, session = wanted.consumer or UNASSIGNED, context.backend.session
    reached = context.reached
    new = reached.routed.begin() if asking.after is None else None
    due = reached.groups.begin(me)
    look: dict[str, Any] = {
        "below": asking.below,
        "me": me,
        "unassigned": UNASSIGNED,
        "start": asking.after if new is None else new.low,
        "marks": reached.routed.needs_mark or reached.groups.needs_mark(me),
        **values_of(due),
    }
    look |= {"count": count, "most": left, "anyhow": anyhow}
    swing = random.uniform(-1, 1)  # noqa: S311  # not a secret
    give = {"most": left, "swing": swing, "by": wanted.claim_id, "who": wanted.consumer}
    before: list[Asked] = [] if asking.new is None else routing_at_once(context, asking.new)
    behind: list[Asked] = []
    if context.options.groups == "exclusive":
        look |= {"process": session, "most_groups": wanted.max_groups, "limit": wanted.limit, "taken": taken}
        give |= {"me": me, "process": session}
        before.append(consumers.locking(context, me))
        behind.append((settling_claimed(context), {}))
    asked = [
        *before,
        (_lock_due_groups(context, all_rows=asking.after is None), look),
        (_claim_first_messages(context), give),
        *behind,
    ]

    def ask(own: SqlConnection) -> Sequence[SqlRows]:
        return execute_all(own, asked, commit=True)

    found = context.backend.transact(
        trying(context, wanted, claimed, ask) if context.options.groups == "exclusive" else ask,
        indexed=True,
        durable=context.options.max_attempts is not None,
    )
    if isinstance(found, TakenBefore):
        return found
    seen, given = found[len(before) : len(before) + 2]
    [top, *_] = rows = seen.all()
    if new is not None:
        note_look(context, top, new)
    reached.groups.note(due, top)
    free = [row for row in rows if row.group_id is not None]
    in_order = sorted(given, key=lambda row: (row[-2], row.position))
    return _RoundTrip(top, free, count, in_order, top.first_new is not None and not anyhow)


def _per_group(free: Sequence[Any], most: int) -> int:
    expected = sum(row.expected for row in free if row.is_chosen)
    return max(1, min(expected, most) // max(1, sum(row.is_chosen for row in free)))


@built_once(maxsize=256)
def _lock_due_groups(context: TableContext, *, all_rows: bool) -> sa.Select[*tuple[Any, ...]]:
    """Look at the table, lock the first groups of the highest priority, and keep the names of as many as needed.

    The consumer's own groups come first. No group is locked if new messages must be routed first, or if an owner of
    groups must be added or released.
    """
    me = sa.bindparam("me", type_=groups.c.assigned.type)
    owns = context.options.groups == "exclusive"
    may = consumers.may_claim(context, me) if owns else sa.true()
    free, own = firsts_of(context, "unassigned", "lows"), firsts_of(context, "me", "own_lows")
    top = looking(context, all_rows=all_rows, firsts=(free, own)).add_columns(may.label("may_claim")).cte("top")
    level = sa.select(sa.func.greatest(top.c.of_unassigned, top.c.of_mine)).scalar_subquery()
    count, most = (sa.bindparam(name, type_=sa.BigInteger) for name in ("count", "most"))
    unowned = sa.literal_column("''")
    is_known = sa.select(
        top.c.may_claim & (top.c.first_new.is_(None) | sa.bindparam("anyhow", type_=sa.Boolean))
    ).scalar_subquery()

    owned: list[sa.ColumnElement[Any]] = []
    if owns:
        is_new = consumers.is_new_to(me, sa.bindparam("process", type_=sa.BigInteger))
        owned = [is_new.label("is_new"), groups.c.had_first]

    def locked(who: sa.ColumnElement[str], firsts: sa.CTE, limit: sa.ColumnElement[int]) -> sa.CTE:
        return (
            sa.select(*FREE_COLUMNS, groups.c.ready_at, groups.c.first_seq, *owned)
            .where(
                groups.c.table_id == context.table_id,
                groups.c.assigned == who,
                groups.c.priority == level,
                groups.c.ready_at <= sa.select(top.c.now).scalar_subquery(),
                groups.c.ready_at >= sa.select(low_of(firsts, level)).scalar_subquery(),
                is_known,
            )
            .order_by(groups.c.ready_at, groups.c.first_seq)
            .limit(limit)
            .with_for_update(skip_locked=True)
        ).cte()

    mine = locked(me, own, sa.case((me == UNASSIGNED, 0), else_=count))
    room = count - sa.select(sa.func.count()).select_from(mine).scalar_subquery()
    if owns:
        whole, taken = (sa.bindparam(name, type_=sa.BigInteger) for name in ("limit", "taken"))
        share = consumers.share_sql(context, me, whole, taken).scalar_subquery()
        room = sa.func.greatest(0, sa.func.least(room, share))
    others = locked(unowned, free, room)
    both = sa.union_all(
        sa.select(mine, sa.false().label("is_for_any")), sa.select(others, sa.true().label("is_for_any"))
    ).subquery("both")
    expected = sa.func.greatest(1, both.c.tail - sa.func.coalesce(both.c.next_position, both.c.tail) + 1)
    order = (both.c.is_for_any, both.c.ready_at, both.c.first_seq)
    ranked = sa.select(
        both.c.group_id,
        both.c.is_for_any,
        *([(both.c.is_for_any | both.c.is_new).label("is_new"), both.c.had_first] if owns else []),
        sa.func.row_number().over(order_by=order).label("nth"),
        expected.label("expected"),
        (sa.func.sum(expected).over(order_by=order, rows=(None, 0)) - expected).label("before"),
    ).cte("ranked")
    chosen = ranked.c.before < most
    names = sa.select(ranked.c.group_id.label("name"), ranked.c.nth, chosen.label("is_chosen")).subquery("names")
    below = [
        highest_of(context, who, firsts, level).is_not(None) for who, firsts in (("unassigned", free), ("me", own))
    ]
    # Checked only if there may be more: for a while the index holds new groups below all others.
    all_locked = sa.select(sa.func.count() < count).select_from(ranked).scalar_subquery()
    much_new = is_much_new(context, sa.select(top.c.first_new).scalar_subquery())
    return sa.select(
        top,
        level.label("level"),
        sa.case((all_locked, sa.or_(*below)), else_=sa.false()).label("is_more_below"),
        sa.case((top.c.first_new.is_not(None), much_new), else_=sa.false()).label("is_much_new"),
        ranked.c.group_id,
        ranked.c.is_for_any,
        ranked.c.nth,
        *([ranked.c.is_new, ranked.c.had_first] if owns else []),
        sa.cast(ranked.c.expected, sa.BigInteger).label("expected"),
        chosen.label("is_chosen"),
        context.sql.keep(names, names.c.is_chosen).scalar_subquery().label("kept"),
    ).select_from(top.outerjoin(ranked, sa.true()))


@built_once(maxsize=256)
def _claim_first_messages(context: TableContext) -> sa.Update:
    """Claim the first messages of the groups whose names were kept, up to the first that is not due, or locked.

    Groups with an expired message or a lapsed lease are skipped. The statement returns the old values of
    `columns_read`, followed by the group and the end of the lease.
    """
    rows, most = context.rows, sa.bindparam("most", type_=sa.BigInteger)
    now = sa.select(context.backend.now_sql()).scalar_subquery()  # once, not for each message
    kept = context.sql.kept()
    group = _first_of_group(context, kept, now)
    message = (
        sa.select(rows.c.seq, rows.c.position, rows.c.time_next, rows.c.epoch, rows.c.claim_id, rows.c.expires_at)
        .where(
            rows.c.group_id == kept.c.name,
            rows.c.position >= group.c.next_position,
            rows.c.position < group.c.next_position + most,
            rows.c.time_acked.is_(None),
            rows.c.ack_held_at.is_(None),
        )
        .order_by(rows.c.position)
        .with_for_update(skip_locked=True)
        .lateral("first")
    )
    before = sa.func.lag(message.c.position).over(partition_by=kept.c.nth, order_by=message.c.position)
    ours = (
        sa.select(
            kept.c.name,
            kept.c.nth,
            group.c.until.label("out_until"),
            message,
            sa.func.coalesce(before, group.c.next_position - 1, type_=sa.BigInteger).label("before"),
        )
        .select_from(sa.join(sa.join(kept, group, sa.true()), message, sa.true()))
        .subquery("ours")
    )
    goes = (ours.c.time_next <= now) & _follows(context, ours)
    lives = ours.c.claim_id.is_(None) & (sa.func.coalesce(ours.c.expires_at, MAX_NS) > now)
    if context.options.max_attempts is not None:
        goes &= sa.func.coalesce(ours.c.epoch, 0) < context.options.max_attempts
    judged = sa.select(
        ours,
        (
            sa.func.bool_and(goes).over(partition_by=ours.c.nth, order_by=ours.c.position)
            & sa.func.bool_and(lives).over(partition_by=ours.c.nth)
        ).label("goes"),
    ).subquery("judged")
    first = (
        sa.select(judged).where(judged.c.goes).order_by(judged.c.nth, judged.c.position).limit(most).subquery("chosen")
    )
    sent = sa.func.max(sa.func.coalesce(first.c.epoch, 0)).over(partition_by=first.c.nth)
    # No shorter than the leases of those already leased, so that none returns while an earlier one is leased.
    until = sa.func.greatest(now + _lease_length(context, sent), first.c.out_until, type_=sa.BigInteger)
    found = sa.select(first, until.label("until")).cte("found").prefix_with("MATERIALIZED")
    its_first = [sa.func.min(found.c.position).label("first")] if context.options.groups == "exclusive" else []
    ends = (
        sa.select(found.c.name, sa.func.max(found.c.until).label("until"), *its_first)
        .group_by(found.c.name)
        .cte("ends")
    )
    before = [found.c[column.name] if column.name in _BEFORE else column for column in columns_read(rows)]
    statement = (
        sa.update(rows)
        .where(context.sql.key_is(rows.c.seq, found.c.seq), not_acked(rows))
        .values(
            time_next=found.c.until,
            epoch=after_claim_sql(found.c.epoch),
            claim_id=sa.bindparam("by", type_=sa.BigInteger),
            consumer=sa.bindparam("who", type_=sa.Text),
        )
        .returning(*before, found.c.nth.label(None), found.c.until.label(None))
    )
    for name, noted in _noting(context, ends).items():
        statement = statement.add_cte(noted.cte(name))
    return statement


def _follows(context: TableContext, ours: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that no locked message lies between a message and its predecessor."""
    between = context.rows.alias("between")
    locked = sa.exists().where(
        between.c.group_id == ours.c.name,
        between.c.position > ours.c.before,
        between.c.position < ours.c.position,
        between.c.time_acked.is_(None),
        between.c.ack_held_at.is_(None),
    )
    return sa.case((ours.c.position == ours.c.before + 1, sa.true()), else_=~locked)


def _first_of_group(context: TableContext, kept: sa.FromClause, now: sa.ColumnElement[int]) -> sa.FromClause:
    """Look up a group's first unclaimed message, and the end of the last lease of the others."""
    rows = context.rows
    may = [sa.func.coalesce(groups.c.paused_until, 0) <= now]
    until: sa.ColumnElement[int] = sa.cast(sa.null(), sa.BigInteger)
    if context.options.groups == "exclusive":
        until = (
            sa.select(sa.func.max(rows.c.time_next))
            .where(
                rows.c.group_id == groups.c.group_id,
                rows.c.position >= groups.c.head,
                rows.c.position < groups.c.next_position,
                is_out(rows),
            )
            .correlate(groups)
            .scalar_subquery()
        )
        lapse = first_of(context, rows.c.time_next, rows.c.position == groups.c.head, rows.c.claim_id.is_not(None))
        may += [groups.c.drain_to.is_(None), sa.func.coalesce(lapse, MAX_NS) > now]
    its = sa.select(groups.c.next_position, until.label("until")).where(*may)
    return context.sql.look_up(its, context.table_id, (groups.c.table_id, groups.c.group_id), kept.c.name).lateral(
        "its"
    )


def _noting(context: TableContext, ends: sa.CTE) -> dict[str, sa.Update]:
    """Update the groups and their owner with the claimed messages and their lease."""
    key = groups.c.table_id, groups.c.group_id
    theirs = sa.update(groups).where(context.sql.has_name(groups, context.table_id, key, ends))
    if context.options.groups != "exclusive":
        return {"noted": theirs.values(ready_at=context.sql.value_of(groups.c.group_id, ends, ends.c.until))}
    me, process = sa.bindparam("me", type_=groups.c.assigned.type), sa.bindparam("process", type_=sa.BigInteger)
    owner = consumers.consumers
    last = sa.select(sa.func.max(ends.c.until)).scalar_subquery()
    renewed = sa.update(owner).where(
        owner.c.table_id == context.table_id, owner.c.name == me, owner.c.session == process, owner.c.lease_until < last
    )
    return {
        "noted": theirs.where(is_assigned(UNASSIGNED) | consumers.is_new_to(me, process)).values(
            assigned=me,
            had_by=me,
            had_in=process,
            had_first=context.sql.value_of(groups.c.group_id, ends, ends.c.first),
        ),
        "renewed": renewed.values(lease_until=last),
    }


def _lease_length(context: TableContext, sent: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    shortest, longest = context.lease_length.bounds
    length = context.lease_length.sql(sent, sa.bindparam("swing", type_=sa.Double))
    return sa.func.least(sa.func.greatest(length, shortest), longest, type_=sa.BigInteger)
