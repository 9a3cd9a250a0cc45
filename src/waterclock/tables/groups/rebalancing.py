"""Shares the exclusive groups of a table evenly among its consumers, without touching leased messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import consumers, groups
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.groups.consumers import GONE
from waterclock.tables.groups.group_state import has_something_out, is_assigned, lock_free_groups, settle, these_groups

_ROUNDS = 3  # how often moves are planned, each time without the groups that others had locked


@dataclass(frozen=True, slots=True)
class Moved:
    """How many groups moved, and how many move once nothing of them is in flight."""

    at_once: int
    later: int
    is_done: bool = True  # False if other transactions had locked so many groups that the numbers still differ


def rebalance(
    context: TableContext, connection: SqlConnection, now: int, *, dry_run: bool = False, waits: bool = False
) -> Moved:
    """Move groups from consumers with many to those with few. Other groups move instead of locked ones.

    It locks the consumers: otherwise one could take a group in the meantime, and get more than its ``max_groups``, or
    leave.

    ``waits`` says whether to wait for consumers that are claiming. Otherwise they keep their groups and get none.
    """
    its = {"table": context.table_id, "now": now}
    everyone = _limits(connection.execute(_living(), its))
    limits = everyone if dry_run else _limits(connection.execute(_locking(waits=waits), its))
    moved: dict[str, bool] = {}
    locked: set[str] = set()
    is_done = True
    for _ in range(_ROUNDS):
        owned = connection.execute(_owned(context)).all() if limits else []
        owners = {row.group_id: row.assigned if row.drain_to is None else row.drain_to for row in owned}
        fixed = {row.group_id for row in owned if row.drain_to is not None or row.pinned}
        moves = plan_moves(_owned_by(limits, owners), limits, fixed | locked)
        free = moves.keys() if dry_run else set(lock_free_groups(context, connection, moves))
        moved |= {row.group_id: bool(row.is_out) for row in owned if row.group_id in free}
        if not dry_run:
            _move(context, connection, sorted(free), moves, owners)
        locked.update(moves.keys() - free)
        after = owners | {name: moves[name] for name in free}
        is_all = not locked and everyone.keys() <= limits.keys()
        is_done = is_all or not plan_moves(_owned_by(everyone, after), everyone, fixed)
        if len(free) == len(moves):
            break
    later = sum(moved.values())
    return Moved(len(moved) - later, later, is_done)


def _limits(found: SqlRows) -> dict[str, int | None]:
    return {row.name: row.max_groups for row in found}


def _owned_by(names: Collection[str], owners: Mapping[str, str]) -> dict[str, str]:
    return {group_id: owner for group_id, owner in owners.items() if owner in names}


def _move(
    context: TableContext, connection: SqlConnection, free: Sequence[str], moves: dict[str, str], owners: dict[str, str]
) -> None:
    ways: dict[tuple[str, str], list[str]] = {}
    for name in free:
        ways.setdefault((owners[name], moves[name]), []).append(name)
    for (owner, to), names in sorted(ways.items()):
        for some in pieces(names):
            connection.execute(_moving(context), {"groups": list(some), "from": owner, "to": to})
    if free:
        settle(context, connection, free, may_end=False)


def plan_moves(owners: Mapping[str, str], limits: dict[str, int | None], stay: Collection[str] = ()) -> dict[str, str]:
    """Choose which groups to move to which consumers, so that their numbers of groups differ by at most one.

    ``owners`` is the owner of every group. ``limits`` is the maximum number of groups of every consumer. ``stay`` are
    groups that must not move.
    """
    having: dict[str, list[str]] = {name: [] for name in limits}
    counts = dict.fromkeys(limits, 0)
    for group_id, owner in owners.items():
        counts[owner] += 1
        if group_id not in stay:
            having[owner].append(group_id)
    moves: dict[str, str] = {}
    while True:
        takers = [name for name, limit in limits.items() if limit is None or counts[name] < limit]
        givers = [name for name, groups_of in having.items() if groups_of]
        if not takers or not givers:
            return moves
        poorest = min(takers, key=lambda name: (counts[name], name))
        richest = max(givers, key=lambda name: (counts[name], name))
        if counts[richest] - counts[poorest] < 2:  # noqa: PLR2004  # one more is as fair as one less
            return moves
        moves[having[richest].pop()] = poorest
        counts[richest] -= 1
        counts[poorest] += 1


@built_once(maxsize=1)
def _living() -> sa.Select[Any, Any]:
    lives = consumers.c.lease_until > sa.bindparam("now"), consumers.c.session != GONE
    return sa.select(consumers.c.name, consumers.c.max_groups).where(
        consumers.c.table_id == sa.bindparam("table"), *lives
    )


@built_once(maxsize=2)
def _locking(*, waits: bool) -> sa.Select[Any, Any]:
    return _living().order_by(consumers.c.name).with_for_update(skip_locked=not waits)


@built_once(maxsize=256)
def _owned(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    columns = groups.c.group_id, groups.c.assigned, groups.c.drain_to, groups.c.pinned
    its = groups.c.table_id == context.table_id, groups.c.assigned != sa.literal_column("''")
    return sa.select(*columns, has_something_out(context).label("is_out")).where(*its).order_by(groups.c.group_id)


@built_once(maxsize=256)
def _moving(context: TableContext) -> sa.Update:
    to = sa.bindparam("to", type_=groups.c.assigned.type)
    is_out = has_something_out(context)
    return (
        sa.update(groups)
        .where(
            these_groups(context),
            is_assigned(sa.bindparam("from", type_=groups.c.assigned.type)),
            groups.c.pinned == 0,
            groups.c.drain_to.is_(None),
        )
        .values(
            assigned=sa.case((is_out, groups.c.assigned), else_=to), drain_to=sa.case((is_out, to), else_=sa.null())
        )
    )
