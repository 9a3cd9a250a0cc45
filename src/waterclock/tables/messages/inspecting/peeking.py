"""Reads waiting messages without taking them, in the order in which consumers would get them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.groups.blocking import places_of
from waterclock.tables.groups.group_state import UNGROUPED
from waterclock.tables.groups.routing import group_of
from waterclock.tables.model.row_conditions import is_expired, is_waiting
from waterclock.tables.model.schema import user_column_names
from waterclock.tables.model.values.reading import Unreadable, unreadable, value_of

Waiting = Literal["ready", "scheduled", "delayed", "exhausted", "blocked"]  # the states of an unleased message

_GROUPS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message that waits. Times in ns.

    Attributes
    ----------
    id, payload, headers
        As in a delivery; None, or no headers, if unreadable.
    group
        Its group; None if it has none.
    priority
        Higher priorities are sent first.
    epoch
        How often it has been sent.
    time_created, time_scheduled
        When it was put, and when it was to be sent.
    due_at
        When its own row allows it to be sent next; earlier messages of its group may delay it.
    expires_at
        When it expires; None: never. Expired messages are left out.
    columns
        Values of additional columns.
    problem
        Which part of it is unreadable; None: nothing.
    state
        Its state in `TableStats`: ``"ready"``, ``"scheduled"``, ``"delayed"``, ``"exhausted"`` or ``"blocked"``.
    """

    id: Any
    payload: Any
    group: str | None
    headers: Mapping[str, str]
    priority: int
    epoch: int
    time_created: int
    time_scheduled: int
    due_at: int
    expires_at: int | None
    columns: Mapping[str, Any]
    problem: str | None = None
    state: Waiting = "ready"


def peek(context: TableContext, connection: sa.Connection, limit: int, group: str | None) -> list[Peeked]:
    """Return up to ``limit`` unleased messages of the connection's snapshot.

    Raises `InvalidArgumentError` for a group of a table without groups. ``group`` is ``""`` for messages without one,
    and None for all.
    """
    if group is not None and context.options.groups is None:
        raise InvalidArgumentError(
            f"group must be omitted for table {context.name!r}, which has no groups, got {quoted(group)}"
        )
    look = _Peek(context, connection, limit)
    if context.options.groups is None:
        look.at_each()
    elif group is None:
        look.at_groups()
    elif group == UNGROUPED and context.options.ungrouped == "free":
        look.at_each(_is_free(context))
    else:
        look.at_group(group)
    places = places_of(context, connection, {row.group_id for row in look.found}, look.now)
    return [_peeked(context, row, _state(row, places.get(row.group_id or UNGROUPED), look.now)) for row in look.found]


def payloads_of(context: TableContext, ids: Sequence[Any]) -> dict[Any, Any]:
    """Return the payloads of messages by id, including acked ones; purged ones are missing."""
    rows = context.rows
    with context.backend.snapshot() as connection:
        found = connection.execute(sa.select(*columns_read(rows)).where(rows.c.id.in_(ids)))
        return {_read(row.id): _read(row.message) for row in found}


class _Peek:
    """A running look."""

    def __init__(self, context: TableContext, connection: sa.Connection, limit: int) -> None:
        self._context = context
        self._connection = connection
        self._limit = limit
        self.now = context.backend.now(connection)  # the database's current time
        self.found: list[sa.Row[Any]] = []  # rows, `columns_read`

    @property
    def _left(self) -> int:
        return self._limit - len(self.found)

    def at_each(self, which: sa.ColumnElement[bool] | None = None) -> None:
        """Look at ungrouped messages: due ones, and then later ones."""
        rows = self._context.rows
        waiting = _waits(self._context, sa.literal(self.now, sa.BigInteger)) & (sa.true() if which is None else which)
        urgent = rows.c.priority.desc()
        self._add(waiting & (rows.c.time_next <= self.now), urgent, rows.c.time_next, rows.c.seq)
        self._add(waiting & (rows.c.time_next > self.now), rows.c.time_next, urgent, rows.c.seq)

    def at_groups(self) -> None:
        """Look at the due groups in order, and then at later ones, each to its end."""
        for name, seq in self._in_turn():
            if seq is not None:
                self._add(self._context.rows.c.seq == seq, self._context.rows.c.seq)
            else:
                self.at_group(name)
            if not self._left:
                return

    def at_group(self, name: str) -> None:
        """Look at one group: routed messages, and then new ones."""
        for is_placed in (True, False) if self._has_new else (True,):
            if self._left:
                its = {"group": name, "now": self.now, "count": self._left}
                statement = _of_group(self._context, is_placed=is_placed, is_named=name != UNGROUPED)
                self.found += self._connection.execute(statement, its)

    @cached_property
    def _has_new(self) -> bool:
        rows, sql = self._context.rows, self._context.sql
        new = sa.select(rows.c.seq).where(sql.is_unrouted(rows)).order_by(*sql.routing_order(rows)).limit(1)
        return self._connection.execute(new).first() is not None

    def _in_turn(self) -> Iterator[tuple[str, int | None]]:
        """Yield groups in the order of claims, and ungrouped messages by seq."""
        every = _candidates(self._context).subquery()
        never = every.c.ready_at.is_(None)
        later = never | (every.c.ready_at > self.now)
        ordered = sa.select(every.c.name, every.c.alone).order_by(
            sa.case((never, 2), (later, 1), else_=0),
            sa.case((later, every.c.ready_at), else_=0),
            every.c.priority.desc(),
            every.c.ready_at,
            every.c.first_seq,
        )
        seen = 0
        while True:
            found = self._connection.execute(ordered.limit(_GROUPS_AT_ONCE).offset(seen)).all()
            yield from ((row.name, row.alone) for row in found)
            if len(found) < _GROUPS_AT_ONCE:
                return
            seen += len(found)

    def _add(self, which: sa.ColumnElement[bool], *order: sa.ColumnElement[Any]) -> None:
        if self._left:
            chosen = sa.select(*columns_read(self._context.rows)).where(which).order_by(*order).limit(self._left)
            self.found += self._connection.execute(chosen)


def _waits(context: TableContext, now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that a message is unleased and may be sent."""
    rows, options = context.rows, context.options
    ours = rows.c.claim_id.is_(None) | (rows.c.time_next <= now)
    waiting = is_waiting(rows) & ours & rows.c.ack_held_at.is_(None) & ~is_expired(rows, now)
    if options.max_attempts is None or options.blocking_attempts is not None:
        return waiting
    return waiting & (sa.func.coalesce(rows.c.epoch, 0) < options.max_attempts)


@built_once(maxsize=256)
def _of_group(context: TableContext, *, is_placed: bool, is_named: bool) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    its = rows.c.group_id == sa.bindparam("group") if is_named else group_of(rows) == UNGROUPED
    place, order = rows.c.position, rows.c.position if is_placed else rows.c.seq
    has_place = place.is_not(None) if is_placed else place.is_(None)
    waits = _waits(context, sa.bindparam("now", type_=sa.BigInteger))
    return sa.select(*columns_read(rows)).where(waits, its, has_place).order_by(order).limit(sa.bindparam("count"))


def _candidates(context: TableContext) -> sa.CompoundSelect[Any, Any, Any, Any, Any]:
    """Select the routed groups, and those of new messages."""
    rows = context.rows
    alone = sa.null().cast(rows.c.seq.type).label("alone")
    known = sa.select(
        groups.c.group_id.label("name"), groups.c.priority, groups.c.ready_at, groups.c.first_seq, alone
    ).where(context.sql.of_table(groups.c.table_id, context.table_id), groups.c.head.is_not(None))
    name = group_of(rows)
    is_new = (
        context.sql.is_unrouted(rows)
        & (context.sql.routing_place(rows) > 0)
        & is_waiting(rows)
        & rows.c.position.is_(None)
    )
    is_known = sa.exists().where(
        context.sql.of_table(groups.c.table_id, context.table_id), groups.c.group_id == name, groups.c.head.is_not(None)
    )
    is_free = _is_free(context) if context.options.ungrouped == "free" else sa.false()
    first = sa.select(sa.func.min(rows.c.seq).label("seq")).where(is_new, ~is_known, ~is_free).group_by(name).subquery()
    new = sa.select(name, rows.c.priority, rows.c.time_next, rows.c.seq, alone).join_from(
        first, rows, rows.c.seq == first.c.seq
    )
    if context.options.ungrouped != "free":
        return sa.union_all(known, new)
    free = sa.select(name, rows.c.priority, rows.c.time_next, rows.c.seq, rows.c.seq.label("alone")).where(
        is_free, _waits(context, context.backend.now_sql())
    )
    return sa.union_all(known, new, free)


def _is_free(context: TableContext) -> sa.ColumnElement[bool]:
    return group_of(context.rows) == UNGROUPED


def _state(row: sa.Row[Any], exhausted_place: int | None, now: int) -> Waiting:
    if exhausted_place is not None and (row.position is None or row.position >= exhausted_place):
        return "exhausted" if row.position == exhausted_place else "blocked"
    if row.time_next <= now:
        return "ready"
    return "delayed" if row.epoch else "scheduled"


def _peeked(context: TableContext, row: sa.Row[Any], state: Waiting) -> Peeked:
    further = user_column_names(context.rows)
    problem = unreadable(row, further)
    headers: Any = {} if row.headers is None or problem is not None else json.loads(row.headers)
    return Peeked(
        id=_read(row.id),
        payload=_read(row.message),
        group=row.group_id or None,
        headers=headers,
        priority=row.priority,
        epoch=row.epoch or 0,
        time_created=row.time_created,
        time_scheduled=row.time_scheduled,
        due_at=row.time_next,
        expires_at=row.expires_at,
        columns={name: _read(value_of(row, name)) for name in further},
        problem=problem,
        state=state,
    )


def _read(value: Any) -> Any:
    return None if isinstance(value, Unreadable) else value
