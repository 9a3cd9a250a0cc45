"""Routes new messages: finds the key of each.

A put only inserts rows, so that a caller's long transaction locks no key. Consumers look for new messages before they
claim. They pass many messages of one key, so that these do not hide other keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.driver_fast_path import execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import unrouted_keys
from waterclock.tables.databases.postgresql.unrouted_keys import is_behind, next_places
from waterclock.tables.databases.table_dialect import adapted
from waterclock.tables.groups.routing import try_turn
from waterclock.tables.keys.key_rows import (
    KeyState,
    Place,
    add,
    give_turns,
    is_unrouted,
    known,
    of_any_key,
    put_off,
    set_times,
    state_of,
)
from waterclock.tables.keys.turn_levels import ASLEEP, HAS_TURN, PACED, lows_of
from waterclock.tables.model.claims.turns import Behind
from waterclock.tables.model.schema import MESSAGE_KEY, SEQ_INDEX, not_acked
from waterclock.time import MAX_NS

_ROUTED_AT_ONCE = 100
_ROUTED_AT_LEAST = 20
_ROUTED_FOR_EACH = 2
"""New messages that a claim reads for each one that it wants: they may be of few keys, and all must be routed before
long. To route a hundred keys, PostgreSQL reads 2,900 pages."""
_SKIPPED_AT_ONCE = 300
"""Blocks of new messages of one key that a search passes: two claims reach a new key behind a million messages. On
MariaDB, the most messages of other keys that a search finds."""
_FEW = 4  # on MariaDB, a window with so many messages of each key, or more, is followed by a search for other keys
_LOOKED_AHEAD = 2_000
"""On MariaDB, messages behind the windows of a claim, among which it looks for keys without a turn."""
_LOOK_AHEAD_EVERY = 0.25  # seconds between two such looks, each of which takes some milliseconds
_WINDOWS = 3  # windows that one claim reads, so that the first ones may be full of few keys


def route_keys(context: TableContext, connection: SqlConnection, now: int, wanted: int) -> None:
    """Add or advance the rows of the keys of some new messages. Waits for no lock.

    The claim wants ``wanted`` messages: if possible, each is of another key.
    """
    if not try_turn(context, connection):
        return
    after = context.turns.routed
    seen: list[Any] = []
    is_of_few = False
    most = min(_ROUTED_AT_ONCE, max(_ROUTED_AT_LEAST, _ROUTED_FOR_EACH * wanted))
    places: set[Place] = set()
    for number in range(_WINDOWS):
        begun_at, skips = after, False
        if number and after is not None and context.sql.is_bounded:
            skips = True
            window = _skip(context, connection, after, _SKIPPED_AT_ONCE)
            after = _end_of(window, _SKIPPED_AT_ONCE)
        elif is_of_few and after is not None and context.sql.begins_at_constants:
            skips = True
            window, after = _pass(context, connection, after, seen, now)
        else:
            window = _read(context, connection, after, most)
            after = _end_of(window, most)
        seen += window
        its = {(row.key, -row.priority) for row in window}
        few = max(1, len(window) // _FEW) if context.sql.begins_at_constants else 1
        is_of_few = after is not None and 0 < len(its) <= few
        # The row of a key stands for all its messages, and later claims mark them.
        marks = not (skips or (number and is_of_few))
        has_new = _route(context, connection, window, now, are_locked=not skips, marks=marks)
        places |= its
        is_enough = len(places) >= wanted or after is None or not has_new
        if is_enough and not is_of_few and (after is not None or begun_at is None):
            break
    context.turns.routed = after
    if after is not None and context.sql.begins_at_constants:
        _route(context, connection, _look_ahead(context, connection, after, now), now, are_locked=False, marks=False)


def _end_of(window: Sequence[Any], count: int) -> Behind | None:
    """Return the place behind which the search goes on, if the window is full."""
    return (window[-1].block, window[-1].key, window[-1].priority) if len(window) == count else None


def _skip(context: TableContext, connection: SqlConnection, after: Behind, count: int) -> list[Any]:
    """Read the first message of each of the next keys and priorities behind a place, locked or not."""
    return list(connection.execute(_next_places(context), {**_named(after), "count": count}))


def _pass(
    context: TableContext, connection: SqlConnection, after: Behind, seen: Sequence[Any], now: int
) -> tuple[list[Any], Behind]:
    """Read messages of other keys than those with most of the messages seen, locked or not, and return where to go on.

    Messages that are due before the first of their key are read, too.
    """
    firsts: dict[tuple[str, int], int] = {}
    for row in seen:
        place = row.key, row.priority
        firsts[place] = min(row.time_next, firsts.get(place, row.time_next))
    most_common = Counter((row.key, row.priority) for row in seen).most_common(unrouted_keys.MOST_PASSED)
    passed = {place: firsts[place] for place, _ in most_common}
    count, values, end = unrouted_keys.passing(passed, after[0], now)
    window = list(connection.execute(_passing(context, count), {**values, "count": _SKIPPED_AT_ONCE}))
    last = _end_of(window, _SKIPPED_AT_ONCE)
    # The search begins with the first key of the second, so its end may be before the place behind which it goes on.
    return window, max(after, last) if last is not None and last[0] < end else (end, "", -MAX_NS)


def _look_ahead(context: TableContext, connection: SqlConnection, after: Behind, now: int) -> Sequence[Any]:
    """Read a message of each key that has no row, or sleeps, behind the last such look, locked or not.

    The other searches pass many messages of few keys, but not those of many keys.
    """
    turns = context.turns
    if moments.monotonic() - turns.looked_ahead_at < _LOOK_AHEAD_EVERY:
        return ()
    turns.looked_ahead_at = moments.monotonic()
    values = {"start": max(turns.ahead, after[0]), "now": now, "count": _SKIPPED_AT_ONCE}
    end = connection.execute(_ahead(context), values).scalar()
    found = connection.execute(_without_turn(context), values).all()
    if len(found) < _SKIPPED_AT_ONCE:
        turns.ahead = 0 if end is None else max(end, values["start"] + 1)
    return found


def _read(context: TableContext, connection: SqlConnection, after: Behind | None, count: int) -> list[Any]:
    """Lock the next new messages that no other transaction has locked, behind a place."""
    if after is None:
        return _lock(context, connection, "first", {**lows_of(context).values, "count": count})
    found: list[Any] = []
    for which in _parts(context):
        if len(found) < count:
            found += _lock(context, connection, which, {**_named(after), "count": count - len(found)})
    return found


_Which = Literal["first", "behind", "same", "later", "newer"]


def _parts(context: TableContext) -> tuple[_Which, ...]:
    """Return the searches for messages behind a place.

    MariaDB does not search an index from several values on in any form of the condition, so each part is a search.
    """
    if context.sql.is_bounded:
        return ("behind",)
    return ("same", "later", "newer") if context.sql.begins_at_bounds else ("same", "later")


def _lock(context: TableContext, connection: SqlConnection, which: _Which, values: Mapping[str, Any]) -> list[Any]:
    found = list(connection.execute(_window(context, which), values))
    if any(row.seq is None for row in found):  # others have locked some: behind these may be more
        return list(connection.execute(_window(context, which, locks=True), values))
    if context.sql.one_writer or context.sql.is_bounded:
        return found
    # MariaDB locks the messages in no order. It compares keys by their bytes, and so does Python.
    return sorted(found, key=_place_of)


def _place_of(row: Any) -> tuple[Any, ...]:
    return row.block, row.key, row.priority, row.time_next


def _route(
    context: TableContext, connection: SqlConnection, window: Any, now: int, *, are_locked: bool, marks: bool
) -> bool:
    """Add or advance the rows of the keys of new messages; return whether there were new keys."""
    new: dict[Place, list[Any]] = {}
    seqs: dict[Place, list[int]] = {}
    for row in window:
        if isinstance(row.key, bytes):  # not valid text, which only SQLite stores: the message waits for a valid key
            continue
        place = (row.key, -row.priority)
        new.setdefault(place, []).append(row)
        seqs.setdefault(place, []).append(row.seq)
    if not new:
        return False
    exist, locked = known(context, connection, {key for key, _ in new})
    missing = {place: its for place, its in seqs.items() if place not in exist}
    added = sorted(chain.from_iterable(missing.values()))
    add(context, connection, added, {level for _, level in missing}, are_locked=are_locked)
    _note(context, connection, {place: (row, new[place]) for place, row in locked.items() if place in new}, now)
    if not marks:
        return bool(missing)
    routed = [seq for place, its in seqs.items() if place in locked or place not in exist for seq in its]
    if routed:
        execute_later(connection, (_marking(context), {"seqs": sorted(routed)}))
    return bool(missing)


def _note(
    context: TableContext, connection: SqlConnection, new: Mapping[Place, tuple[Any, Sequence[Any]]], now: int
) -> None:
    """Write new messages of keys into the rows of these."""
    turns: dict[Place, KeyState] = {}
    off: dict[Place, KeyState] = {}
    changed: dict[Place, KeyState] = {}
    for place, (row, messages) in new.items():
        before = state = state_of(row)
        for one in messages:
            # One that is claimed may be extended, so it stands behind the gap although it is due.
            is_due = one.time_next <= now and one.claim_id is None
            state = state.with_due(one.time_next) if is_due else state.with_later(one.time_next)
            if one.claim_id is not None:
                state = state.with_leased(one.time_next, one.seq)
        first = min(one.time_next for one in messages)
        if row.is_due in (HAS_TURN, PACED) or (row.is_due == ASLEEP and first >= row.due_at):
            changed |= {place: state} if state != before else {}
        elif first <= now:
            turns[place] = state
        else:
            # The row may sleep longer than its first message, which was due just before the row was written.
            off[place] = state.asleep(state.first_at)
    give_turns(context, connection, turns)
    put_off(context, connection, off)
    set_times(context, connection, changed)


def _named(after: Behind | None) -> dict[str, Any]:
    assert after is not None  # noqa: S101  # the caller has checked it
    return dict(zip(("block", "key", "priority"), after, strict=True))


def _last(rows: sa.Table) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the parameters of `_named`."""
    types = {"block": sa.BigInteger(), "key": rows.c[MESSAGE_KEY].type, "priority": sa.BigInteger()}
    return tuple(sa.bindparam(name, type_=of) for name, of in types.items())


@built_once(maxsize=256)
def _window(context: TableContext, which: _Which, *, locks: bool = False) -> sa.Select[*tuple[Any, ...]]:
    """Lock new messages; if ``locks``, the search itself locks them, and so finds those behind locked ones."""
    rows = context.rows
    key, block = context.sql.few(rows.c[MESSAGE_KEY]), context.sql.block_of(rows)
    last_block, last, priority = _last(rows)
    if context.sql.one_writer:  # SQLite stores invalid text, too, which Python reads as bytes
        last = last.op("||")(sa.literal_column("''"))  # a CAST would keep it from the index
    has_blocks = context.sql.begins_at_bounds
    same = (block == last_block,) if has_blocks else ()
    chosen = {
        "first": lambda: (of_any_key(context),),
        "same": lambda: (*same, key == last, rows.c.priority > priority),
        "later": lambda: (*same, key > last),
        "newer": lambda: (block > last_block,),
        "behind": lambda: (is_behind(rows, _last(rows)),),
    }
    order = () if which == "same" else (key,) if which == "later" or not has_blocks else (block, key)
    its = rows.c.priority, rows.c.time_next, rows.c.claim_id
    columns = rows.c.seq, block.label("block"), key.label("key"), *its
    conditions = is_unrouted(context), *chosen[which]()

    def search(source: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
        adapt = adapted(source, rows)
        found = context.sql.by_unrouted_index(sa.select(*map(adapt, columns)), source).where(*map(adapt, conditions))
        in_order = found.order_by(*map(adapt, (*order, rows.c.priority, rows.c.time_next)))
        return in_order.limit(sa.bindparam("count", type_=sa.Integer))

    if locks:
        return search(rows).with_for_update(skip_locked=True)
    return context.sql.lock_free(rows, search, not_acked(rows) & (sa.func.coalesce(rows.c.routed, 1) != 1))


@built_once(maxsize=256)
def _next_places(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    return next_places(context.rows, _last(context.rows))


@built_once(maxsize=256)
def _passing(context: TableContext, count: int) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    place = context.sql.block_of(rows).label("block"), rows.c[MESSAGE_KEY].label("key"), rows.c.priority
    found = context.sql.by_unrouted_index(sa.select(rows.c.seq, *place, rows.c.time_next, rows.c.claim_id), rows)
    found = found.where(is_unrouted(context), unrouted_keys.is_not_passed(rows, count))
    return found.order_by(*place, rows.c.time_next).limit(sa.bindparam("count", type_=sa.Integer))


def _behind(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Select new messages from a second on, by the index alone."""
    rows = context.rows
    place = context.sql.block_of(rows).label("block"), rows.c[MESSAGE_KEY].label("key"), rows.c.priority
    found = context.sql.by_unrouted_index(sa.select(rows.c.seq, *place, rows.c.time_next), rows)
    return found.where(of_any_key(context)).order_by(*place, rows.c.time_next)


@built_once(maxsize=256)
def _ahead(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    end = _behind(context).with_only_columns(context.sql.block_of(context.rows), maintain_column_froms=True)
    return end.limit(sa.literal_column("1")).offset(sa.literal_column(str(_LOOKED_AHEAD)))


@built_once(maxsize=256)
def _without_turn(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    new = _behind(context).limit(sa.literal_column(str(_LOOKED_AHEAD))).subquery("new")
    its, whole = message_keys.c, context.rows.alias("whole")
    of_key = its.table_id == context.table_id, its.message_key == new.c.key, its.level == -new.c.priority
    is_early = (its.is_due == ASLEEP) & (new.c.time_next <= sa.bindparam("now", type_=sa.BigInteger))
    # Outer joins make the server begin with the new messages.
    firsts = sa.select(sa.func.min(new.c.seq).label("seq"), new.c.key, new.c.priority)
    firsts = firsts.select_from(new.outerjoin(message_keys, sa.and_(*of_key)))
    firsts = firsts.with_hint(message_keys, "FORCE INDEX (PRIMARY)")
    firsts = firsts.where(its.message_key.is_(None) | (is_early & (new.c.time_next < its.due_at)))
    first = firsts.group_by(new.c.key, new.c.priority).limit(sa.bindparam("count", type_=sa.Integer)).subquery("first")
    found = sa.select(*first.c, whole.c.time_next, whole.c.claim_id)
    found = found.select_from(first.outerjoin(whole, whole.c.seq == first.c.seq))
    return found.with_hint(whole, f"FORCE INDEX (`{context.rows.info[SEQ_INDEX]}`)")


@built_once(maxsize=256)
def _marking(context: TableContext) -> sa.Update:
    return sa.update(context.rows).where(context.unacked()).values(routed=sa.literal_column("1"))
