"""The values of a group's row that depend on the group's messages, in SQL: the first messages, and when it is due."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.time import MAX_NS


def first_of(
    context: TableContext, value: Any, *conditions: sa.ColumnElement[bool], from_first: bool = False
) -> sa.ScalarSelect[Any]:
    """Return the first unacked message of a group that has a position, in a statement about `groups`.

    ``from_first`` says whether to search from the very first position instead of from the group's head.
    """
    rows = context.rows
    begins = rows.c.position.is_not(None) if from_first else _not_passed(rows)
    return (
        context.sql.by_index(sa.select(value).select_from(rows), rows, "group")
        .where(rows.c.group_id == groups.c.group_id, begins, rows.c.time_acked.is_(None), *conditions)
        .order_by(rows.c.position)
        .limit(1)
        .correlate(groups)
        .scalar_subquery()
    )


def _not_passed(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message is at or behind its group's head, or the tail of a group without a head.

    New messages go behind the tail. So no scan meets the index entries of acked messages, which a server keeps for as
    long as a transaction holds an old snapshot.
    """
    return rows.c.position >= first_place()


def first_place() -> sa.ColumnElement[int]:
    """Return the position from which the first message of a group is searched."""
    return sa.func.coalesce(groups.c.head, groups.c.tail)


def is_exhausted_sql(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message blocks its group because it has used up its attempts."""
    most = context.options.blocking_attempts
    return sa.false() if most is None else context.rows.c.epoch >= most


class GroupPlaces(NamedTuple):
    """Positions of a group's messages."""

    head: sa.ColumnElement[int]  # of the first one
    next: sa.ColumnElement[int]  # of the first one that no consumer has, in an exclusive group
    last: sa.ColumnElement[int]


def settled_values(
    context: TableContext,
    *,
    from_first: bool,
    places: GroupPlaces | None = None,
    keeps_place: bool = False,
    is_compared: bool = False,
) -> dict[str, Any]:
    """Return the values of a group's row that depend on its messages; ``from_first`` as in `first_of`.

    With ``places``, the other values follow from the row's head and next position: an UPDATE reads values that it has
    set, and a comparison needs the others only if these are right.

    ``keeps_place`` says whether a group that was due and still is, with the same message, priority and owner, stays so
    since then. ``is_compared`` says whether the values are compared with those of the row, instead of written.
    """
    rows = context.rows
    now = context.backend.now_sql() if is_compared else written_at(context)
    waiting = (rows.c.claim_id.is_(None), rows.c.ack_held_at.is_(None))

    def first(value: Any, *conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
        if places is not None:
            conditions += (rows.c.position == (groups.c.next_position if conditions else groups.c.head),)
        return first_of(context, value, *conditions, from_first=from_first)

    last = (
        sa.select(rows.c.position)
        .where(
            rows.c.group_id == groups.c.group_id,
            rows.c.position.is_not(None) if from_first else _not_passed(rows),
            rows.c.time_acked.is_(None),
        )
        .order_by(rows.c.position.desc())
        .limit(1)
        .correlate(groups)
        .scalar_subquery()
    )
    head: sa.ColumnElement[Any] = first(rows.c.position)
    values: dict[str, Any] = {"head": head, "tail": sa.func.coalesce(last, groups.c.tail)}
    if places is not None:
        head, last = groups.c.head, sa.case((groups.c.head.is_(None), sa.null()), else_=places.last)
        values = {"head": places.head, "tail": sa.func.coalesce(last, groups.c.tail)}
    values |= {
        "priority": sa.func.coalesce(first(rows.c.priority), groups.c.priority),
    }
    if context.sql.keeps_ended:
        begun = sa.func.coalesce(first(rows.c.seq), groups.c.first_seq)
        values["first_seq"] = sa.case((groups.c.head.is_(None), begun), else_=groups.c.first_seq)
        values["ended_at"] = sa.null()
    if context.options.groups == "exclusive":
        values["next_position"] = first(rows.c.position, *waiting) if places is None else places.next
        values["idle_since"] = sa.case(
            (
                head.is_(None) & (groups.c.assigned != UNASSIGNED),
                sa.func.coalesce(groups.c.idle_since, now),
            ),
            else_=sa.null(),
        )
        floor = _since(keeps_place, rows.c.position == groups.c.next_position, now)
        lapse = first(sa.case((rows.c.claim_id.is_not(None), rows.c.time_next), else_=sa.null()))
        next_due = sa.case(
            (groups.c.drain_to.is_not(None), sa.null()), else_=due_at(context, is_exhausted_sql(context), floor)
        )
        due = first(next_due, *waiting)
        never = sa.literal(MAX_NS, sa.BigInteger)
        earliest = context.sql.smaller(sa.func.coalesce(lapse, never), sa.func.coalesce(due, never))
        # No EXISTS: misled by statistics, PostgreSQL would read all messages for it.
        keeps_head = first(sa.case((_is_head(rows), 1), else_=0)) == 1
        earliest = context.sql.larger(earliest, _since(keeps_place, keeps_head, now))
        values["ready_at"] = sa.func.nullif(earliest, never)
    else:
        values["next_position"] = head
        over = rows.c.claim_id.is_(None) | (rows.c.time_next <= now)
        values["ready_at"] = first(
            due_at(context, is_exhausted_sql(context) & over, _since(keeps_place, _is_head(rows), now))
        )
    return values


def written_at(context: TableContext) -> sa.ColumnElement[int]:
    """Return the time at which a row is written: bounds may have passed the beginning of the statement."""
    now = context.backend.now_sql()
    return context.sql.at_write(now) if context.backend.has_own_clock else now


def _is_head(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a group has the same head and priority as before."""
    return (rows.c.position == groups.c.head) & (rows.c.priority == groups.c.priority)


def _since(
    keeps_place: bool, is_unchanged: sa.ColumnElement[bool], now: sa.ColumnElement[int]
) -> sa.ColumnElement[int]:
    """Return the time before which a group is not due: now, or an earlier time at which it has become due."""
    if not keeps_place:
        return now
    return sa.case((is_unchanged & (groups.c.ready_at < now), groups.c.ready_at), else_=now)


def due_at(context: TableContext, never: sa.ColumnElement[bool], floor: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
    """Return when a message is due or expires: then the next claim removes it.

    Not before ``floor``, which is usually now: groups that are due are ordered by when they became due, so claims can
    skip past times (`GroupBounds`).
    """
    rows, paused_until = context.rows, groups.c.paused_until
    expires = sa.case((rows.c.claim_id.is_(None) | never, sa.func.coalesce(rows.c.expires_at, MAX_NS)), else_=MAX_NS)
    due = context.sql.smaller(sa.case((never, MAX_NS), else_=sa.func.coalesce(rows.c.time_next, 0)), expires)
    due = context.sql.larger(due, floor)
    return sa.case((never & rows.c.expires_at.is_(None), sa.null()), (paused_until > due, paused_until), else_=due)
