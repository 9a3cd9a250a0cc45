"""Claims in a table with exclusive groups: a group belongs to one consumer as long as that consumer is alive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups import consumers
from waterclock.tables.groups.consumers import Joined
from waterclock.tables.groups.first_positions import (
    SEARCHED_AT_ONCE,
    first_values,
    given_position,
    searches_for,
    within_places,
)
from waterclock.tables.groups.group_state import is_behind, is_out, lock_out, settle, these_groups
from waterclock.tables.groups.rebalancing import rebalance
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.groups.settled_values import first_of
from waterclock.tables.messages.claiming.claim_groups_in_steps import GroupClaim, leave_out
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.epochs import uncounted_sql


def claim_exclusive(
    context: TableContext, connection: SqlConnection, wanted: Wanted, part: int | None
) -> tuple[list[Claimed], bool]:
    """Claim messages of the consumer's own groups and, if it has room, of unassigned groups.

    Returns the claimed messages, and whether there are new messages that were not examined. ``part`` numbers the
    transactions of a claim: while others have to route more new messages, it claims nothing.
    """
    claim = _ExclusiveClaim(context, connection, wanted, part)
    claim.take()
    return claim.claimed, claim.more


class _ExclusiveClaim(GroupClaim):
    def take(self) -> None:
        """Claim due messages, unless another live process has the consumer's name."""
        context, connection, most_groups = self._context, self._connection, self._wanted.max_groups
        top = self.route_new(locks=False)
        if self.only_routes:
            return
        joined = consumers.join(context, connection, self._me, most_groups, self._now)
        if joined is Joined.REFUSED:
            self.more = False
            return
        consumers.release_lapsed(context, connection, self._now)
        if context.options.rebalance == "join" and (joined is Joined.NEW or self._me in context.unbalanced):
            self._rebalance()
        if context.options.group_idle is not None:
            consumers.release_idle(context, connection, self._now)
        if most_groups is not None:
            self._room = consumers.room_of(context, connection, self._me, most_groups)
        most = self._wanted.limit
        if most > 1 and (top.unrouted or top.of_unassigned is not None):
            # The first consumer to claim leaves some for those that wait.
            share = consumers.fair_share(context, connection, self._me, most, self._now)
            if share < most:
                self._room = share if self._room is None else min(self._room, share)
        self.take_all(top, is_known=False)
        if self.claimed:
            consumers.renew(context, connection, self._me, max(one.lease_until for one in self.claimed))

    def _rebalance(self) -> None:
        """Get a share of the groups that others have; the next claim continues if too many of them are locked."""
        context, connection = self._context, self._connection
        context.unbalanced.add(self._me)
        # One at a time, so that each sees the moves of the others if several consumers join.
        if not try_turn(context, connection):
            return
        moved = rebalance(context, connection, self._now)
        if moved.is_done:
            context.unbalanced.discard(self._me)
        if moved.at_once:  # those are due since they moved
            self._now = context.backend.now(connection)

    def _take_from(self, free: Iterable[Any], most: int, who: str) -> None:
        context, connection = self._context, self._connection
        free = list(free)
        heads = {row.group_id: row.head for row in free}
        chosen = self._revoke_lapsed(self._choose(free, most), heads)
        if not chosen:
            return
        first = {row.group_id: None if who == UNASSIGNED or row.is_new else row.had_first for row in free}
        sent = self._due_first(self._first_messages(chosen, most, who), most)
        out: dict[str, tuple[int, int]] = {}
        for name in sent:
            # From its head up to its next message, a group has messages that are leased.
            head, after = heads[name], self._starts[name]
            if head is not None and after is not None and head < after:
                out[name] = head, after
        self._hand_out(sent, first, out)
        new = {name: members[0].position for name, members in sent.items() if first[name] is None}
        for some in pieces(sorted(new), SEARCHED_AT_ONCE):
            by = {"who": self._me, "process": context.backend.session}
            places = first_values({name: new[name] for name in some})
            connection.execute(_assign(context, searches_for(len(some))), {"groups": list(some), **by, **places})
        if who == UNASSIGNED and self._room is not None:
            self._room -= len(sent)
        settle(context, connection, chosen)

    def _hand_out(
        self, sent: dict[str, list[Any]], first: dict[str, int | None], out: dict[str, tuple[int, int]]
    ) -> None:
        context, connection = self._context, self._connection
        ends = _last_ends(context, connection, out)
        by_end: dict[int, list[Any]] = {}
        for group_id, members in sent.items():
            # No shorter than the leases of those already leased, so that none returns while an earlier one is leased.
            until = max(self._lease_end(members), ends.get(group_id) or 0)
            by_end.setdefault(until, []).extend(members)
            of = members[0].position if first[group_id] is None else first[group_id]
            self.claimed += [Claimed(row, until, is_first=row.position == of) for row in members]
        for until, together in by_end.items():
            connection.execute(
                leave_out(context), {"seqs": [row.seq for row in together], "until": until, **self._mine}
            )

    def _revoke_lapsed(self, chosen: list[str], heads: dict[str, int]) -> list[str]:
        """Restart groups whose first message was not acked in time: those behind it must not overtake it.

        Returns the groups except those that cannot restart because another transaction has locked a message.
        """
        context, connection = self._context, self._connection
        lapsed = list(connection.scalars(_lapsed(context), {"groups": chosen, "now": self._now}))
        if not lapsed:
            return chosen
        out = lock_out(context, connection, lapsed)
        if out.names:
            connection.execute(_revoke_behind(context), {"seqs": out.seqs, "now": self._now})
            settle(context, connection, out.names)
        self._starts |= {name: heads[name] for name in out.names}
        locked = set(lapsed).difference(out.names)
        return [name for name in chosen if name not in locked]


@built_once(maxsize=256)
def _lapsed(context: TableContext) -> sa.Select[Any]:
    # Looked up group by group, here and below: for a join, a planner without statistics reads all messages.
    rows = context.rows
    end = first_of(context, rows.c.time_next, rows.c.position == groups.c.head, rows.c.claim_id.is_not(None))
    over = end <= sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(groups.c.group_id).where(these_groups(context), over)


@built_once(maxsize=256)
def _revoke_behind(context: TableContext) -> sa.Update:
    rows = context.rows
    early = rows.c.time_next > sa.bindparam("now", type_=sa.BigInteger)
    has_not_begun = early if context.options.max_attempts is None else early | is_behind(context)
    return (
        sa.update(rows)
        .where(context.unacked())
        # The epoch comes first: MariaDB reads values that the same statement has set.
        .ordered_values(
            (rows.c.epoch, sa.case((has_not_begun, uncounted_sql(rows.c.epoch)), else_=rows.c.epoch)),
            (rows.c.time_next, sa.case((early, sa.bindparam("now", type_=sa.BigInteger)), else_=rows.c.time_next)),
            (rows.c.claim_id, None),
        )
    )


def _last_ends(context: TableContext, connection: SqlConnection, out: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return when the last lease of each group ends; ``out`` has the positions from which and up to which to look."""
    ends: dict[str, int] = {}
    for some in pieces(sorted(out), SEARCHED_AT_ONCE):
        starts, upto = ({name: out[name][place] for name in some} for place in (0, 1))
        found = connection.execute(_ends_within(context, searches_for(len(some))), first_values(starts, upto))
        ends |= dict(found.all())
    return ends


@built_once(maxsize=256)
def _ends_within(context: TableContext, searches: int) -> sa.Select[Any, Any]:
    rows = context.rows
    its = within_places(rows, searches), is_out(rows)
    return sa.select(rows.c.group_id, sa.func.max(rows.c.time_next)).where(*its).group_by(rows.c.group_id)


@built_once(maxsize=256)
def _assign(context: TableContext, count: int) -> sa.Update:
    who, process = sa.bindparam("who"), sa.bindparam("process", type_=sa.BigInteger)
    values = {"assigned": who, "had_by": who, "had_in": process, "had_first": given_position(count)}
    return sa.update(groups).where(these_groups(context)).values(values)
