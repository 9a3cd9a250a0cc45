"""Routes new messages: finds the key of each.

A put only inserts rows, so that a caller's long transaction locks no key. Consumers look for new messages before they
claim. They pass many messages of one key, so that these do not hide other keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.driver_fast_path import execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb import unrouted_keys
from waterclock.tables.databases.message_keys import level_of
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
from waterclock.tables.keys.turn_tiers import ASLEEP, FOLLOWS, HAS_TURN, PACED, learn_tiers, lows_of, tier_of
from waterclock.tables.model.claims.turns import Behind
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import MESSAGE_KEY, SEQ_INDEX
from waterclock.time import MAX_NS, MIN_NS

_ROUTED_AT_ONCE = 100
_ROUTED_AT_LEAST = 20
_ROUTED_FOR_EACH = 2
"""New messages that a claim reads for each one that it wants: they may be of few keys, and all must be routed before
long. To route a hundred keys, PostgreSQL reads 2,900 pages."""
_SKIPPED_AT_ONCE = 300
"""Blocks of new messages of one key that a search passes: two claims reach a new key behind a million messages. On
MariaDB, the most keys without a turn that a search finds."""
_FEW = 4  # on MariaDB, a window with so many messages of each key, or more, is followed by a search for other keys
_LOOKED_AHEAD = 2_000
"""On MariaDB, messages behind the windows of a claim, among which it looks for keys without a turn."""
_LOOK_AHEAD_EVERY = 0.25  # seconds between two looks behind the windows, each of which takes some milliseconds
_NEWEST, _NEWEST_PLACES = 64, 10
"""How many of the newest messages a claim looks at that leaves others behind its windows, and for how many keys and
priorities of these it routes one. A new key's message is among them, however many messages of others wait."""
_LOOK_ON_FOR = 0.1  # seconds for which a claim that found nothing to hand out looks for keys behind the windows
_WINDOWS = 3  # windows that one claim reads, so that the first ones may be full of few keys


def route_keys(context: TableContext, connection: SqlConnection, now: int, wanted: int) -> None:
    """Add or advance the rows of the keys of some new messages. Waits for no lock.

    The claim wants ``wanted`` messages: if possible, each is of another key.
    """
    if not try_turn(context, connection):
        return
    after, jumps = context.turns.routed, context.sql.begins_at_constants
    seen: list[Any] = []
    is_of_few = False
    most = min(_ROUTED_AT_ONCE, max(_ROUTED_AT_LEAST, _ROUTED_FOR_EACH * wanted))
    places: set[Place] = set()
    new_keys = 0
    for number in range(_WINDOWS):
        begun_at = after
        skips = number > 0 and after is not None and context.sql.is_bounded
        window = (_skip if skips else _read)(context, connection, after, _SKIPPED_AT_ONCE if skips else most)
        after = _end_of(window, _SKIPPED_AT_ONCE if skips else most)
        seen += window
        its = {(row.key, -row.priority) for row in window}
        is_of_few = after is not None and 0 < len(its) <= (max(1, len(window) // _FEW) if jumps else 1)
        # The row of a key stands for all its messages, and later claims mark them.
        marks = not (skips or (number and is_of_few))
        added, of_new_keys = _route(context, connection, window, now, are_locked=not skips, marks=marks)
        places |= its
        new_keys += of_new_keys
        is_enough = len(places) >= wanted or after is None or not added
        if (jumps and is_of_few) or (is_enough and not is_of_few and (after is not None or begun_at is None)):
            break
    if after is not None and jumps:
        found, after = _look_for_others(context, connection, after, seen if is_of_few else (), now)
        _route(context, connection, found, now, are_locked=False, marks=False)
    elif after is not None and context.turns.looks_ahead(moments.monotonic(), _LOOK_AHEAD_EVERY):
        found = _look_for_keys(context, connection, after)
        _route(context, connection, found, now, are_locked=False, marks=False)
    if after is not None and not new_keys:  # otherwise, one more new key would wait for its turn behind these
        found = _look_at_newest(context, connection, places)
        _route(context, connection, found, now, are_locked=False, marks=False, are_first=False)
    context.turns.routed = after


def look_on(context: TableContext, connection: SqlConnection, now: int) -> None:
    """Look for further keys behind the windows of `route_keys`, because a claim has found nothing to hand out.

    Very many keys that are full or whose rate is used up would otherwise hide others while consumers are idle.
    """
    turns, ends = context.turns, moments.monotonic() + _LOOK_ON_FOR
    after = turns.routed
    if after is None or not try_turn(context, connection):
        return
    while True:
        if context.sql.begins_at_constants:
            found = _look_ahead(context, connection, after, {"now": now, "count": _SKIPPED_AT_ONCE})
        else:
            found = _look_for_keys(context, connection, after)
        _route(context, connection, found, now, are_locked=False, marks=False)
        if turns.ahead is None or moments.monotonic() >= ends:
            return


def _end_of(window: Sequence[Any], count: int) -> Behind | None:
    """Return the place behind which the search goes on, if the window is full."""
    return (window[-1].block, window[-1].key, window[-1].level) if len(window) == count else None


def _skip(context: TableContext, connection: SqlConnection, after: Behind | None, count: int) -> list[Any]:
    """Read the first message of each of the next keys and priorities behind a place, locked or not."""
    return list(connection.execute(_next_places(context, of_keys=False), {**_named(after), "count": count}))


def _look_at_newest(context: TableContext, connection: SqlConnection, seen: set[Place]) -> list[Any]:
    """Read a message of each key and priority, other than those ``seen``, that the newest messages have."""
    turns, now = context.turns, moments.monotonic()
    turns.newest = {place: at for place, at in turns.newest.items() if now - at < _LOOK_AHEAD_EVERY}
    newest = {(row.key, -row.priority): row for row in connection.execute(_newest(context))}
    found = [place for place in newest if place not in seen and place not in turns.newest][:_NEWEST_PLACES]
    turns.newest |= dict.fromkeys(found, now)
    return [newest[place] for place in found]


def _look_for_keys(context: TableContext, connection: SqlConnection, after: Behind) -> Sequence[Any]:
    """Read a message of each of the next keys behind a place, or behind the end of the last such look.

    A key with messages of many priorities would otherwise hide others: the windows go from priority to priority.
    """
    turns = context.turns
    start = turns.ahead or after
    found: list[Any] = []
    if context.sql.is_bounded:
        values = {**_named(max(start, after)), "count": _SKIPPED_AT_ONCE}
        found += connection.execute(_next_places(context, of_keys=True), values)
        turns.ahead = _end_of(found, _SKIPPED_AT_ONCE)
    else:
        turns.ahead = start
        while turns.ahead is not None and len(found) < _ROUTED_AT_ONCE:
            one = _lock(context, connection, "behind", {**_named(turns.ahead), "count": 1})
            turns.ahead = _end_of(one, 1)
            found += one
    firsts: dict[str, Any] = {}
    for row in found:
        firsts.setdefault(row.key, row)
    return list(firsts.values())


def _look_for_others(
    context: TableContext, connection: SqlConnection, after: Behind, few: Sequence[Any], now: int
) -> tuple[Sequence[Any], Behind]:
    """Read a message of each key that has no row, or sleeps, behind a place, and return where to go on.

    The messages may be locked. If those seen are of ``few`` keys, one search passes most messages of these. Another one
    begins at the end of the last such search.
    """
    turns, found = context.turns, list[Any]()
    values: dict[str, Any] = {"now": now, "count": _SKIPPED_AT_ONCE}
    if few:
        firsts: dict[Place, int] = {}
        for row in few:
            firsts[row.key, row.priority] = min(row.time_next, firsts.get((row.key, row.priority), row.time_next))
        common = Counter((row.key, row.priority) for row in few).most_common(unrouted_keys.MOST_PASSED)
        passing = unrouted_keys.passing({place: firsts[place] for place, _ in common}, after[0], now)
        passed = {**passing.values, **values}
        found += connection.execute(_without_turn(context, passing.keys), passed)
        if len(found) < _SKIPPED_AT_ONCE:
            end = connection.execute(_end_of_look(context, passing.keys), passed).first()
            last = passing.end, "", -MAX_NS
            after = last if end is None else max(after, min(tuple(end), last))
    if turns.looks_ahead(moments.monotonic(), _LOOK_AHEAD_EVERY):
        found += _look_ahead(context, connection, after, values)
    return found, after


def _look_ahead(
    context: TableContext, connection: SqlConnection, after: Behind, values: Mapping[str, Any]
) -> Sequence[Any]:
    """Read a message of each key that has no row, or sleeps, behind a place, or behind the end of the last look."""
    turns = context.turns
    of_look = {**values, **_named(after if turns.ahead is None else max(turns.ahead, after))}
    end = connection.execute(_end_of_look(context, 0), of_look).first()
    found = connection.execute(_without_turn(context, 0), of_look).all()
    if len(found) < _SKIPPED_AT_ONCE:
        turns.ahead = None if end is None else tuple(end)
    return found


def _read(context: TableContext, connection: SqlConnection, after: Behind | None, count: int) -> list[Any]:
    """Lock the next new messages that no other transaction has locked, behind a place."""
    if after is None:
        return _lock(context, connection, "first", {**lows_of(context).values, "count": count})
    found: list[Any] = []
    # SQLite does not search an index from several values on.
    for which in ("same", "behind") if context.sql.one_writer else ("behind",):
        if len(found) < count:
            found += _lock(context, connection, which, {**_named(after), "count": count - len(found)})
    return found


def _lock(context: TableContext, connection: SqlConnection, which: str, values: Mapping[str, Any]) -> list[Any]:
    found = list(connection.execute(_window(context, which), values))
    if any(row.seq is None for row in found):  # others have locked some: behind these may be more
        return list(connection.execute(_window(context, which, locks=True), values))
    if context.sql.one_writer or context.sql.is_bounded:
        return found
    # MariaDB locks the messages in no order. It compares keys by their bytes, and so does Python.
    return sorted(found, key=attrgetter("block", "key", "level", "time_next"))


def _route(
    context: TableContext,
    connection: SqlConnection,
    window: Any,
    now: int,
    *,
    are_locked: bool,
    marks: bool,
    are_first: bool = True,
) -> tuple[int, int]:
    """Add or advance the rows of the keys of new messages.

    Returns the number of rows that were missing, and that of keys without any row. Unless the messages ``are_first``,
    other new ones of the same key and priority may be due earlier.
    """
    new: dict[Place, list[Any]] = {}
    seqs: dict[Place, list[int]] = {}
    for row in window:
        if isinstance(row.key, bytes):  # not valid text, which only SQLite stores: the message waits for a valid key
            continue
        place = (row.key, -row.priority)
        new.setdefault(place, []).append(row)
        seqs.setdefault(place, []).append(row.seq)
    if not new:
        return 0, 0
    exist, locked = known(context, connection, {key for key, _ in new})
    if context.sql.begins_at_constants:  # a claim searches only known levels
        learn_tiers(context, {tier_of(context, level) for _, level in new})
    missing = {place: its for place, its in seqs.items() if place not in exist}
    added = sorted(chain.from_iterable(missing.values()))
    add(context, connection, added, {level for _, level in missing}, are_locked=are_locked, are_first=are_first)
    noted = {place: (row, new[place]) for place, row in locked.items() if place in new}
    _note(context, connection, noted, now, are_first=are_first)
    counts = len(missing), len({key for key, _ in missing} - {key for key, _ in exist})
    if not marks:
        return counts
    routed = [seq for place, its in seqs.items() if place in locked or place not in exist for seq in its]
    if routed:
        execute_later(connection, (_marking(context), {"seqs": sorted(routed)}))
    return counts


def _note(
    context: TableContext,
    connection: SqlConnection,
    new: Mapping[Place, tuple[Any, Sequence[Any]]],
    now: int,
    *,
    are_first: bool,
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
        if row.is_due in (HAS_TURN, PACED, FOLLOWS) or (row.is_due == ASLEEP and first >= row.due_at):
            changed |= {place: state} if state != before else {}
        elif first <= now:
            turns[place] = state if are_first else state._replace(first_at=MIN_NS)
        else:
            # The row may sleep longer than its first message, which was due just before the row was written.
            off[place] = state.asleep(state.first_at)
    give_turns(context, connection, turns)
    put_off(context, connection, off)
    set_times(context, connection, changed)


def _named(after: Behind | None) -> dict[str, Any]:
    assert after is not None  # noqa: S101  # the caller has checked it
    return dict(zip(("block", "key", "level"), after, strict=True))


def _last(rows: sa.Table) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the parameters of `_named`."""
    types = {"block": sa.BigInteger(), "key": rows.c[MESSAGE_KEY].type, "level": sa.BigInteger()}
    return tuple(sa.bindparam(name, type_=of) for name, of in types.items())


@built_once(maxsize=256)
def _window(context: TableContext, which: str, *, locks: bool = False) -> sa.Select[*tuple[Any, ...]]:
    """Lock new messages; if ``locks``, the search itself locks them, and so finds those behind locked ones."""
    rows = context.rows
    key, block, level = context.sql.few(rows.c[MESSAGE_KEY]), context.sql.block_of(rows), level_of(rows)
    _, last, last_level = _last(rows)
    if context.sql.one_writer:  # SQLite stores invalid text, too, which Python reads as bytes
        last = last.op("||")(sa.literal_column("''"))  # a CAST would keep it from the index
    if context.sql.is_bounded:
        behind = is_behind(rows, _last(rows))
    elif context.sql.one_writer:
        behind = key > last
    else:
        behind = _is_behind_in_ranges(context)
    chosen = {"first": of_any_key(context), "same": (key == last) & (level > last_level), "behind": behind}
    order = () if which == "same" else (key,) if context.sql.one_writer else (block, key)
    its = level.label("level"), rows.c.priority, rows.c.time_next, rows.c.claim_id
    columns = rows.c.seq, block.label("block"), key.label("key"), *its
    conditions = is_unrouted(context), chosen[which]

    def search(source: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
        adapt = adapted(source, rows)
        found = context.sql.by_index(sa.select(*map(adapt, columns)), source, "unrouted").where(*map(adapt, conditions))
        in_order = found.order_by(*map(adapt, (*order, context.sql.by_rank(rows), rows.c.time_next)))
        return in_order.limit(sa.bindparam("count", type_=sa.Integer))

    if locks:
        return search(rows).with_for_update(skip_locked=True)
    return context.sql.lock_free(rows, search, not_acked(rows) & (sa.func.coalesce(rows.c.routed, 1) != 1))


def _is_behind_in_ranges(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message stands behind a place, as ranges of the index."""
    rows = context.rows
    key, block = context.sql.few(rows.c[MESSAGE_KEY]), context.sql.block_of(rows)
    last_block, last, level = _last(rows)
    in_block = (key > last) | ((key == last) & (rows.c.priority < -level))
    return (block > last_block) | ((block == last_block) & in_block)


@built_once(maxsize=256)
def _newest(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Select new messages among the last ones, locked or not, the newest first. Only the index of seqs answers it."""
    rows, last = context.rows, context.rows.alias("last")
    newest = sa.select(sa.func.max(last.c.seq)).scalar_subquery() - sa.literal_column(str(_NEWEST))
    is_new = not_acked(rows), sa.func.coalesce(rows.c.routed, 1) != 1
    its = rows.c.seq, rows.c[MESSAGE_KEY].label("key"), rows.c.priority, rows.c.time_next, rows.c.claim_id
    found = sa.select(*its).where(rows.c.seq > newest, *is_new).order_by(rows.c.seq.desc())
    if context.sql.begins_at_constants:
        return found.with_hint(rows, f"FORCE INDEX (`{rows.info[SEQ_INDEX]}`)")
    return found


@built_once(maxsize=256)
def _next_places(context: TableContext, *, of_keys: bool) -> sa.Select[*tuple[Any, ...]]:
    return next_places(context.rows, _last(context.rows), of_keys=of_keys)


def _unrouted(context: TableContext, passed: int) -> sa.Select[*tuple[Any, ...]]:
    """Select new messages by the index alone: those that are not ``passed`` with so many keys, or all behind a place.

    Its parameters are `unrouted_keys.Passing.values`, or those of `_named`.
    """
    rows = context.rows
    place = context.sql.block_of(rows).label("block"), rows.c[MESSAGE_KEY].label("key"), rows.c.priority
    found = context.sql.by_index(sa.select(rows.c.seq, *place, rows.c.time_next), rows, "unrouted")
    chosen = unrouted_keys.is_not_passed(rows, passed) if passed else _is_behind_in_ranges(context)
    return found.where(chosen).order_by(*place[:2], context.sql.by_rank(rows), rows.c.time_next)


@built_once(maxsize=256)
def _end_of_look(context: TableContext, passed: int) -> sa.Select[*tuple[Any, ...]]:
    """Select the place of the last message that `_without_turn` has read, if that has not read all messages.

    Other messages of this place may be left, but those that were read are due earlier.
    """
    found = _unrouted(context, passed)
    place = found.selected_columns.block, found.selected_columns.key, level_of(context.rows).label("level")
    found = found.with_only_columns(*place, maintain_column_froms=True)
    return found.limit(sa.literal_column("1")).offset(sa.literal_column(str(_LOOKED_AHEAD - 1)))


@built_once(maxsize=256)
def _without_turn(context: TableContext, passed: int) -> sa.Select[*tuple[Any, ...]]:
    new = _unrouted(context, passed).limit(sa.literal_column(str(_LOOKED_AHEAD))).subquery("new")
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
