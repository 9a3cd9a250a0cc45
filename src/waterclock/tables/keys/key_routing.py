"""Routing: find keys of new messages.

Putting only inserts rows, so that a caller's long transaction locks no key. Consumers look for new messages before they
claim, in the order of keys, so that many messages of one key hide no other key.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.keys.key_rows import Place, add, give_turns, is_unrouted, known, put_off
from waterclock.tables.model.schema import MESSAGE_KEY

_ROUTED_AT_ONCE = 100
_WINDOWS = 3
"""Windows that one claim reads, so that the first ones may be full of one key."""


def route_keys(context: TableContext, connection: SqlConnection, now: int) -> None:
    """Add or advance the rows of the keys of some new messages. Waits for no lock."""
    if not try_turn(context, connection):
        return
    begin = context.turns.routed
    for _ in range(_WINDOWS):
        window = connection.execute(_window(context, begins=begin is None), _values(begin)).all()
        _route(context, connection, window, now)
        if len(window) < _ROUTED_AT_ONCE:
            if begin is None:
                break
            begin = None
            continue
        begin = (window[-1].key, window[-1].priority)
    context.turns.routed = begin


def _values(begin: tuple[str, int] | None) -> dict[str, Any]:
    return {} if begin is None else {"key": begin[0], "priority": begin[1]}


def _route(context: TableContext, connection: SqlConnection, window: Any, now: int) -> None:
    new: dict[Place, int] = {}
    seqs: dict[Place, list[int]] = {}
    for row in window:
        place = (row.key, -row.priority)
        new[place] = min(row.time_next, new.get(place, row.time_next))
        seqs.setdefault(place, []).append(row.seq)
    if not new:
        return
    exist, locked = known(context, connection, new)
    add(context, connection, {place: due for place, due in new.items() if place not in exist}, now)
    earlier = {
        place: new[place]
        for place, row in locked.items()
        if place in new and not row.is_due and new[place] < row.due_at
    }
    give_turns(context, connection, [place for place, due in earlier.items() if due <= now])
    put_off(context, connection, {place: due for place, due in earlier.items() if due > now})
    routed = [seq for place, its in seqs.items() if place in locked or place not in exist for seq in its]
    if routed:
        connection.execute(_marking(context), {"seqs": sorted(routed)})


@built_once(maxsize=256)
def _window(context: TableContext, *, begins: bool) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    key = rows.c[MESSAGE_KEY]
    chosen = sa.select(rows.c.seq, key.label("key"), rows.c.priority, rows.c.time_next).where(is_unrouted(rows))
    if not begins:
        last, priority = sa.bindparam("key", type_=key.type), sa.bindparam("priority", type_=sa.BigInteger)
        chosen = chosen.where(key >= last, (key > last) | (rows.c.priority > priority))
    return (
        chosen.order_by(key, rows.c.priority, rows.c.time_next).limit(_ROUTED_AT_ONCE).with_for_update(skip_locked=True)
    )


@built_once(maxsize=256)
def _marking(context: TableContext) -> sa.Update:
    return sa.update(context.rows).where(context.unacked()).values(routed=sa.literal_column("1"))
