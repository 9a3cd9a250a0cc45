"""Routes new messages: finds their keys.

A put only inserts rows, so that a caller's long transaction locks no key. Consumers look for new messages before they
claim, in the order of keys, so that many messages of one key hide no other key.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal

import sqlalchemy as sa

from waterclock.database.driver_fast_path import execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.keys.key_rows import Place, add, give_turns, is_unrouted, known, lower, of_any_key, put_off
from waterclock.tables.model.schema import MESSAGE_KEY

_ROUTED_AT_ONCE = 100
_WINDOWS = 3
"""Windows that one claim reads, so that the first ones may be full of one key."""


def route_keys(context: TableContext, connection: SqlConnection, now: int) -> None:
    """Add or advance the rows of the keys of some new messages. Waits for no lock."""
    if not try_turn(context, connection):
        return
    after = context.turns.routed
    for number in range(_WINDOWS):
        window = _read(context, connection, after)
        _route(context, connection, window, now, marks_all=not number)
        has_begun = after is None
        after = (window[-1].key, window[-1].priority) if len(window) == _ROUTED_AT_ONCE else None
        is_of_one = after is not None and (window[0].key, window[0].priority) == after
        if not is_of_one and (after is not None or has_begun):
            break
    context.turns.routed = after


def _read(context: TableContext, connection: SqlConnection, after: tuple[str, int] | None) -> list[Any]:
    """Lock the next new messages that no other transaction has locked, behind a key and a priority."""
    if after is None:
        return list(connection.execute(_window(context, "first"), {"count": _ROUTED_AT_ONCE}))
    of = {"key": after[0], "priority": after[1]}
    found = list(connection.execute(_window(context, "same"), {**of, "count": _ROUTED_AT_ONCE}))
    if len(found) < _ROUTED_AT_ONCE:
        left = _ROUTED_AT_ONCE - len(found)
        found += connection.execute(_window(context, "later"), {"key": after[0], "count": left})
    return found


def _route(context: TableContext, connection: SqlConnection, window: Any, now: int, *, marks_all: bool) -> None:
    new: dict[Place, int] = {}
    seqs: dict[Place, list[int]] = {}
    for row in window:
        place = (row.key, -row.priority)
        new[place] = min(row.time_next, new.get(place, row.time_next))
        seqs.setdefault(place, []).append(row.seq)
    if not new:
        return
    exist, locked = known(context, connection, {key for key, _ in new})
    missing = {place: its for place, its in seqs.items() if place not in exist}
    add(context, connection, sorted(chain.from_iterable(missing.values())), {level for _, level in missing})
    earlier = {
        place: new[place]
        for place, row in locked.items()
        if place in new and not row.is_due and new[place] < row.due_at
    }
    give_turns(context, connection, {place: due for place, due in earlier.items() if due <= now})
    put_off(context, connection, {place: due for place, due in earlier.items() if due > now})
    due_before = {
        place: new[place] for place, row in locked.items() if place in new and row.is_due and new[place] < row.first_at
    }
    lower(context, connection, due_before)
    if len(new) == 1 and len(window) == _ROUTED_AT_ONCE and not marks_all:
        return  # the row stands for them, too, and later claims mark them
    routed = [seq for place, its in seqs.items() if place in locked or place not in exist for seq in its]
    if routed:
        execute_later(connection, (_marking(context), {"seqs": sorted(routed)}))


@built_once(maxsize=256)
def _window(context: TableContext, keys: Literal["first", "same", "later"]) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    key = context.sql.few(rows.c[MESSAGE_KEY])
    last = sa.bindparam("key", type_=rows.c[MESSAGE_KEY].type)
    # Not in one statement: no database searches the index from a pair on in all forms of the condition.
    chosen = {
        "first": (of_any_key(context),),
        "same": (key == last, rows.c.priority > sa.bindparam("priority", type_=sa.BigInteger)),
        "later": (key > last,),
    }
    found = sa.select(rows.c.seq, key.label("key"), rows.c.priority, rows.c.time_next)
    return (
        context.sql.by_unrouted_index(found, rows)
        .where(is_unrouted(rows), *chosen[keys])
        .order_by(*(() if keys == "same" else (key,)), rows.c.priority, rows.c.time_next)
        .limit(sa.bindparam("count", type_=sa.Integer))
        .with_for_update(skip_locked=True)
    )


@built_once(maxsize=256)
def _marking(context: TableContext) -> sa.Update:
    return sa.update(context.rows).where(context.unacked()).values(routed=sa.literal_column("1"))
