"""Maintains a row in the catalogue for each key, which shows whether the key is due, and when its turn comes.

A row stands for the messages of one key and one priority. It waits for its turn in a tier (`tier_of`), or sleeps. In a
table with ``fair_by``, one row of a key waits for its turn, and the others that are due follow it. Several wait until
the next turn of the key if messages of other priorities became due: only a claim that has locked all rows of the key
makes rows follow.

A row sleeps until its first routed, unacked message may be due, or until the rate of its key allows another message.
Claims maintain the rows: they postpone a row to the due time of its first message, and delete a row that has no
messages and whose rate is not in use. On PostgreSQL, such a row stays for some minutes (`TableDialect.keeps_ended`).
No statement waits for a row's lock.

A row has a time before which none of its routed messages is due (``first_at``). Searches for messages of the key begin
at this time, past the index entries of finished messages. Only a process that has locked the row changes ``first_at``.
The value is exact: all messages that may be due earlier are unrouted, and the process that routes them lowers
``first_at``.

Between two other times of the row (``gap_from``, ``gap_to``), none of its routed messages is due. The index holds many
dead entries in this gap: the ends of leases whose messages were acked in time. No search reads these dead entries,
because a claim that took all due messages postpones the row until the gap ends. Messages before the gap are unclaimed,
and a trigger makes them unrouted if a statement postpones them. So no message gets into the gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.driver_fast_path import Asked, execute_all, execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import LOWEST, message_keys
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.mariadb.listed_rows import delete_listed
from waterclock.tables.databases.message_keys import level_of
from waterclock.tables.databases.table_dialect import LongKey
from waterclock.tables.groups.settled_values import written_at
from waterclock.tables.keys.execute_together import Search, execute_together
from waterclock.tables.keys.locking_search import LockingSearch, lock_found, locking_search
from waterclock.tables.keys.turn_tiers import (
    ASLEEP,
    ENDED,
    FOLLOWS,
    HAS_TURN,
    PACED,
    first_of,
    has_turn,
    is_in,
    lows_of,
    sleeps,
    some_in_turn,
    tier_of,
)
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import MESSAGE_KEY
from waterclock.time import MAX_NS, MIN_NS

Place = tuple[str, int]  # a key and a level


class KeyState(NamedTuple):
    """What the row of a key says about its messages."""

    first_at: int  # no routed message is due earlier, ns
    # No routed message is due between these times, ns.
    gap_from: int
    gap_to: int
    used_until: int = 0  # until when the row must be kept for the rate limit, ns
    # No routed message that a consumer has has an earlier end of its lease, ns, or a lower seq.
    leased_from: int = LOWEST
    leased_seq: int = LOWEST

    def with_due(self, at: int) -> KeyState:
        """Return the state with an unclaimed message that is due already."""
        return self._replace(first_at=min(self.first_at, at), gap_from=max(self.gap_from, at))

    def with_later(self, at: int) -> KeyState:
        """Return the state with a message that is leased, or due later."""
        return self._replace(first_at=min(self.first_at, at), gap_to=min(self.gap_to, at))

    def with_leased(self, until: int, seq: int) -> KeyState:
        """Return the state with a message that is leased until then, ns."""
        state = self.with_later(until)
        return state._replace(leased_from=min(self.leased_from, until), leased_seq=min(self.leased_seq, seq))

    def asleep(self, until: int) -> KeyState:
        """Return the state of a key without a message that is due earlier, ns."""
        return self._replace(first_at=until, gap_from=MIN_NS, gap_to=until)

    def searched_until(self, now: int) -> int:
        """Return until when to search for the first message, ns: behind that, the gap tells."""
        end = max(now, self.gap_from)
        return end if end < self.gap_to else MAX_NS


def state_of(row: Any) -> KeyState:
    """Return what a row says."""
    return KeyState(row.first_at, row.gap_from, row.gap_to, row.rate_next, row.leased_from, row.leased_seq)


_WOKEN_AT_ONCE = 100
_MOVED_AT_ONCE = 100
_BOUNDED: tuple[str, ...] = ("turn", "due_at")  # columns below whose bounds nothing is written
_TIMES = "first_at", "gap_from", "gap_to", "leased_from", "leased_seq"  # columns of a `KeyState`


def owned(
    context: TableContext, connection: SqlConnection, keys: Collection[str], asked: Sequence[Asked]
) -> tuple[dict[str, list[Any]], list[SqlRows]]:
    """Lock all rows of these keys, and then run statements, in one round trip if possible.

    If two transactions owned a key at the same time, each would have locked a row that the other one did not see. So
    each row would have been committed after the other transaction looked, and before its own one did, which is
    impossible. The statements see all messages that earlier owners claimed.

    Returns the keys of which no other transaction has locked a row, with their rows, and the results of the statements.
    """
    seen, locked, found = _known(context, connection, keys, asked)
    foreign = {key for key, _ in seen - locked.keys()}
    ours: dict[str, list[Any]] = {}
    for (key, _), row in locked.items():
        if key not in foreign:
            ours.setdefault(key, []).append(row)
    return ours, found


def known(
    context: TableContext, connection: SqlConnection, keys: Collection[str]
) -> tuple[set[Place], dict[Place, Any]]:
    """Return which rows of these keys exist, and those of them that were locked, with their values."""
    return _known(context, connection, keys, ())[:2]


def _known(
    context: TableContext, connection: SqlConnection, keys: Collection[str], asked: Sequence[Asked]
) -> tuple[set[Place], dict[Place, Any], list[SqlRows]]:
    names = {"keys": sorted(set(keys))}
    reading = [] if context.sql.one_writer else [(_rows_of(context, locking=False), names)]
    rows, *found = execute_all(connection, [(_rows_of(context, locking=True), names), *reading, *asked])
    locked = {(row.message_key, row.level): row for row in rows}
    seen = set(locked)
    if reading:
        seen.update((row.message_key, row.level) for row in found.pop(0))
    return seen, locked, found


@built_once(maxsize=256)
def _rows_of(context: TableContext, *, locking: bool) -> sa.Select[*tuple[Any, ...]]:
    found = context.sql.rows_of_each(message_keys, context.table_id, key_of_rows(), "keys", skip_locked=locking)
    return found if locking else found.with_only_columns(message_keys.c.message_key, message_keys.c.level)


def wake(context: TableContext, connection: SqlConnection, now: int) -> None:
    """Assign turns to keys that have become due, delete those without messages, and put the others off."""
    values = {"now": now, "count": _WOKEN_AT_ONCE, **lows_of(context).values}
    found = lock_found(connection, _awake(context), values)
    states = {(row.message_key, row.level): state_of(row) for row in found}
    place_all(context, connection, states, now)


def move_tiers(context: TableContext, connection: SqlConnection) -> bool:
    """Assign turns to rows that wait behind the tier of a table with ``fair_by``; return whether there may be more.

    They began to wait while the table had only a limit or a rate. Claims would not reach them while other keys wait.
    """
    found = lock_found(connection, [_behind_only_tier(context)], {"count": _MOVED_AT_ONCE})
    give_turns(context, connection, {(row.message_key, row.level): state_of(row) for row in found})
    return len(found) == _MOVED_AT_ONCE


@built_once(maxsize=256)
def _behind_only_tier(context: TableContext) -> LockingSearch:
    its = message_keys.c
    found = sa.select(its.message_key, its.level, *columns_of_state())
    found = found.where(has_turn(context), its.tier > sa.literal_column(str(tier_of(context, 0))))
    return locking_search(context, found, its.tier, its.turn, index="turn")


@built_once(maxsize=256)
def _awake(context: TableContext) -> list[LockingSearch]:
    its = message_keys.c
    found = sa.select(its.message_key, its.level, *columns_of_state()).where(_of_table(context))
    conditions = _has_slept(context, sa.bindparam("now", type_=sa.BigInteger))
    return [locking_search(context, found.where(has_slept), its.due_at, index="due") for has_slept in conditions]


def _has_slept(context: TableContext, now: sa.ColumnElement[int]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions, each with ranges of an index, of rows that need not sleep any longer."""
    due_at, rate = message_keys.c.due_at, context.options.rate_of_a_key
    asleep = sleeps(context, ASLEEP) & (due_at <= now)
    if rate is None:
        return [asleep, is_in(PACED)]
    # No pause is longer than the time for one message, unless the clock was set back or the rate was raised.
    longest = sa.literal(rate.time_for(1), sa.BigInteger)
    return [asleep, sleeps(context, PACED) & (due_at <= now), is_in(PACED) & (due_at > now + longest)]


def some_slept(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a row need not sleep any longer."""
    due_at, conditions = message_keys.c.due_at, _has_slept(context, context.backend.now_sql())
    found = [sa.select(due_at).where(_of_table(context), condition) for condition in conditions]
    return sa.or_(*(first_of(context, one, due_at, index="due").is_not(None) for one in found))


def place_all(
    context: TableContext,
    connection: SqlConnection,
    states: Mapping[Place, KeyState],
    now: int,
    *,
    keeps_turns: bool = False,
    settled: Collection[str] = (),
) -> None:
    """Put locked rows where their messages belong. Those that are due are last in turn, in this order.

    A row without messages stays as long as its rate limit needs it. If ``keeps_turns``, rows that are due stay as they
    are. If other rows of its key follow, a row without due messages waits for a turn, too, unless the key is
    ``settled``: another row has a turn, or none follow. Rows may also follow if this process has not noticed yet that
    a limit was lifted.
    """
    if not states:
        return
    asked = [
        (
            _first_due(context, checks=place[0] not in settled),
            {**_named(place), **of_messages(place), "low": state.first_at, "until": state.searched_until(now)},
        )
        for place, state in states.items()
    ]
    firsts = execute_together(context, connection, asked)
    due: dict[Place, KeyState] = {}
    sleeping: dict[Place, KeyState] = {}
    gone: list[Place] = []
    for (place, state), [found] in zip(states.items(), firsts, strict=True):
        first = found.time_next
        if first is None and state.searched_until(now) < state.gap_to < MAX_NS:
            first = state.gap_to
        if first is not None and first <= now:
            due[place] = state._replace(first_at=first)
        elif found.is_followed:
            due[place] = state
        elif first is not None or state.used_until > now:
            sleeping[place] = state.asleep(state.used_until if first is None else first)
        else:
            gone.append(place)
    if not keeps_turns:
        give_turns(context, connection, due)
    put_off(context, connection, sleeping)
    if context.sql.keeps_ended:
        ended = {place: states[place].asleep(MAX_NS) for place in gone}
        put_off(context, connection, ended, dict.fromkeys(gone, now), ENDED)
    elif context.sql.waits_for_each and gone:
        connection.execute(_deleting_all(context), {"places": gone})
    else:
        execute_later(connection, *[(_deleting(context), _named(place)) for place in gone])


def follow(context: TableContext, connection: SqlConnection, states: Mapping[Place, KeyState]) -> None:
    """Put rows behind the row of their key that waits for its turn."""
    _change(context, connection, {place: _times(state) for place, state in states.items()}, is_due=FOLLOWS)


def put_off(
    context: TableContext,
    connection: SqlConnection,
    states: Mapping[Place, KeyState],
    until: Mapping[Place, int] | None = None,
    how: int = ASLEEP,
) -> None:
    """Put rows off until a time, ns: by default that before which none of their messages is due."""
    at = {place: state.first_at for place, state in states.items()} if until is None else until
    times = {place: {"due_at": at[place], **_times(state)} for place, state in states.items()}
    _change(context, connection, times, is_due=how)


def _times(state: KeyState) -> dict[str, int]:
    return {name: getattr(state, name) for name in _TIMES}


def set_times(
    context: TableContext,
    connection: SqlConnection,
    states: Mapping[Place, KeyState],
    had: Mapping[Place, int] | None = None,
) -> None:
    """Write the times of rows that keep their places, and how many messages they ``had`` in their turns."""
    more = {} if had is None else {place: {"had": count} for place, count in had.items()}
    _change(context, connection, {place: _times(state) | more.get(place, {}) for place, state in states.items()})


def set_rates(context: TableContext, connection: SqlConnection, states: Mapping[Place, int]) -> None:
    """Write the states of rate limits into rows."""
    _change(context, connection, {place: {"rate_next": state} for place, state in states.items()})


def give_turns(
    context: TableContext, connection: SqlConnection, states: Mapping[Place, KeyState], last: int | None = None
) -> None:
    """Assign turns to rows, after all others, in this order.

    ``states`` are the rows, each with its new state. ``last`` is the last turn of their tiers, if it is known.
    """
    if states:
        tiers = {place: tier_of(context, place[1]) for place in states}
        if last is None:
            last = max(_last_turns(context, connection, set(tiers.values())))
        turns = {
            place: {"tier": tiers[place], "turn": last + nth, **_times(states[place])}
            for nth, place in enumerate(states, 1)
        }
        _change(context, connection, turns, is_due=HAS_TURN, had=0)


def _change(
    context: TableContext, connection: SqlConnection, values: Mapping[Place, Mapping[str, int]], **same: int
) -> None:
    """Set columns of each row to its values, and other columns to the same values in all rows."""
    if values:
        names = tuple(next(iter(values.values())))
        changes = [_named(place) | {f"new_{name}": own[name] for name in names} for place, own in values.items()]
        execute_later(connection, (_changing(context, names, tuple(same.items())), changes))


@built_once(maxsize=1024)
def _changing(
    context: TableContext, columns: tuple[str, ...], same: tuple[tuple[str, int], ...]
) -> sa.Update | sa.Insert:
    key = {"table_id": context.table_id, "message_key": _named_key(), "level": _level()}
    own = {name: sa.bindparam(f"new_{name}", type_=sa.BigInteger()) for name in columns}
    least = {} if context.sql.one_writer else dict.fromkeys(_BOUNDED, written_at(context))
    fixed = {name: sa.literal_column(str(value)) for name, value in same}
    return context.sql.change_each(message_keys, _this(context), key, own, least, **fixed)


def key_of_rows() -> LongKey:
    """Return the columns by which rows are looked up."""
    its = message_keys.c
    return its.table_id, its.message_key, its.level


def _not_past(context: TableContext, name: str, value: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return a value of a column that has bounds: at least the time when it is written."""
    is_bounded = not context.sql.one_writer and name in _BOUNDED
    return context.sql.larger(value, written_at(context)) if is_bounded else value


def add(
    context: TableContext,
    connection: SqlConnection,
    seqs: Sequence[int],
    levels: Collection[int],
    *,
    are_locked: bool,
    are_first: bool,
) -> None:
    """Insert the missing rows of these messages; those that are due are last in turn.

    Messages that are not locked may have another key meanwhile. Unless they ``are_first``, others of the same key and
    priority may be due earlier.
    """
    if seqs:
        to = 1 + max(_last_turns(context, connection, {tier_of(context, level) for level in levels}))
        execute_later(
            connection, (_adding(context, looks=not are_locked, are_first=are_first), {"seqs": seqs, "to": to})
        )


@built_once(maxsize=256)
def _adding(context: TableContext, *, looks: bool, are_first: bool) -> sa.Insert:
    rows, at = context.rows, context.rows.c.time_next
    first, is_due = sa.func.min(at), (at <= context.backend.now_sql()) & rows.c.claim_id.is_(None)
    level = level_of(rows)
    its = sa.select(
        sa.literal(context.table_id, sa.BigInteger),
        rows.c[MESSAGE_KEY],
        level,
        level if context.options.fair_by is None else sa.literal_column(str(tier_of(context, 0))),
        sa.case((first <= context.backend.now_sql(), 1), else_=0),
        _not_past(context, "due_at", first),
        first if are_first else sa.literal(MIN_NS, sa.BigInteger),
        # Without a row, the key has no others that were routed.
        sa.func.coalesce(sa.func.max(sa.case((is_due, at))), sa.literal(MIN_NS, sa.BigInteger)),
        sa.func.coalesce(sa.func.min(sa.case((is_due, None), else_=at)), sa.literal(MAX_NS, sa.BigInteger)),
        _not_past(context, "turn", sa.bindparam("to", type_=sa.BigInteger)),
        *(
            sa.func.coalesce(sa.func.min(sa.case((rows.c.claim_id.is_not(None), first))), MAX_NS, type_=sa.BigInteger)
            for first in (at, rows.c.seq)
        ),
    )
    its = its.where(context.unacked()).group_by(rows.c[MESSAGE_KEY], rows.c.priority)
    if looks:
        place = context.table_id, rows.c[MESSAGE_KEY], level
        known = sa.select(message_keys.c.turn).where(context.sql.is_row(key_of_rows(), place)).correlate(rows)
        its = its.where(~known.exists())
    written = [name for name in message_keys.columns.keys() if name not in ("rate_next", "had")]  # noqa: SIM118  # no dict
    return sa.insert(message_keys).from_select(written, its, include_defaults=False)


def _last_turns(context: TableContext, connection: SqlConnection, tiers: Iterable[int]) -> list[int]:
    return [found[0][0] for found in execute_together(context, connection, last_turns(context, tiers))]


def last_turns(context: TableContext, tiers: Iterable[int]) -> list[Search]:
    """Return the statements that select the last turn of each tier, or the current time if that is later."""
    bounded = context.sql.is_bounded
    return [
        (
            _last_turn(context),
            {"tier": tier, "low": context.reached.groups.low(UNASSIGNED, tier)} if bounded else {"tier": tier},
        )
        for tier in tiers
    ]


def _named(place: Place) -> dict[str, Any]:
    return {"key": place[0], "of": place[1]}


def of_messages(place: Place) -> dict[str, Any]:
    """Return the parameters of `of_place`."""
    return {"key": place[0], "priority": -place[1]}


def columns_of_state() -> list[sa.Column[int]]:
    """Return the columns that `state_of` reads."""
    return [message_keys.c[name] for name in ("rate_next", *_TIMES)]


def _of_table(context: TableContext) -> sa.ColumnElement[bool]:
    return message_keys.c.table_id == context.table_id


def _this(context: TableContext) -> sa.ColumnElement[bool]:
    return context.sql.is_row(key_of_rows(), (context.table_id, _named_key(), _level()))


def _named_key() -> sa.BindParameter[str]:
    return sa.bindparam("key", type_=message_keys.c.message_key.type)


def _level() -> sa.BindParameter[int]:
    return sa.bindparam("of", type_=sa.BigInteger)


@built_once(maxsize=256)
def _deleting(context: TableContext) -> sa.Delete:
    return sa.delete(message_keys).where(_this(context))


@built_once(maxsize=256)
def _deleting_all(context: TableContext) -> sa.TextClause:
    _, *key = key_of_rows()
    return delete_listed("places", key, _of_table(context))


@built_once(maxsize=256)
def _last_turn(context: TableContext) -> sa.Select[int]:
    turn, now, tier = message_keys.c.turn, context.backend.now_sql(), sa.bindparam("tier", type_=sa.BigInteger)
    low = sa.bindparam("low", type_=sa.BigInteger) if context.sql.is_bounded else now
    found = sa.select(turn).where(has_turn(context), message_keys.c.tier == tier, turn >= low)
    last = found.order_by(turn.desc()).limit(1).scalar_subquery()
    if context.sql.begins_at_constants:  # a search from the end that finds nothing reads the entries of all turns
        last = sa.case((first_of(context, found, turn, index="turn").is_not(None), last))
    return sa.select(context.sql.larger(sa.func.coalesce(last, now), now))


@built_once(maxsize=256)
def _first_due(context: TableContext, *, checks: bool) -> sa.Select[*tuple[Any, ...]]:
    """Select when the first message of a locked row is due, and whether other rows of the key follow it."""
    found = first_unacked(context.rows).where(context.sql.needs_row(context.rows.c.routed))
    found = found.where(context.rows.c.time_next <= sa.bindparam("until", type_=sa.BigInteger))
    first = found.scalar_subquery().label("time_next")
    if not checks:
        return sa.select(first, sa.false().label("is_followed"))

    def follows(its: Any) -> sa.ColumnElement[bool]:
        return its.is_due == sa.literal_column(str(FOLLOWS))

    others = context.sql.has_neighbour(message_keys, context.table_id, key_of_rows(), follows, "is_due")
    return sa.select(first, others.label("is_followed")).select_from(message_keys).where(_this(context))


def first_unacked(rows: sa.FromClause) -> sa.Select[int]:
    """Return the statement for the due time of the first message `of_place`, locked or not, from ``low`` on."""
    its = *of_place(rows, rows.c[MESSAGE_KEY]), rows.c.time_acked.is_(None), is_from_low(rows)
    return sa.select(rows.c.time_next).where(*its).order_by(rows.c.time_next).limit(1)


def is_from_low(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a message is not due before the time bound as ``low``."""
    return rows.c.time_next >= sa.bindparam("low", type_=sa.BigInteger)


def of_place(rows: sa.FromClause, key: sa.ColumnElement[str]) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a message has the key and the priority bound as ``key`` and ``priority``."""
    of = sa.bindparam("key", type_=rows.c[MESSAGE_KEY].type)
    return key == of, rows.c.priority == sa.bindparam("priority", type_=sa.BigInteger)


@built_once(maxsize=256)
def keys_due(context: TableContext, known: int) -> sa.Select[Any, Any]:
    """Return when a key may be due, the current time if one waits for its turn, and the current time; both ns.

    ``known`` is from `lows_of`.
    """
    now = context.backend.now_sql()
    due_at = message_keys.c.due_at
    found = [sa.select(due_at).where(_of_table(context), sleeps(context, one)) for one in (ASLEEP, PACED)]
    firsts = sa.union_all(
        *(sa.select(first_of(context, one, due_at, index="due").label("due_at")) for one in found)
    ).subquery()
    sleeping = sa.select(sa.func.min(firsts.c.due_at)).scalar_subquery()
    is_due = some_in_turn(context, known) | some_unrouted(context) | some_slept(context)
    return sa.select(sa.case((is_due, now), else_=sleeping), now)


def is_unrouted(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message may be due before the row of its key, or its key has no row."""
    rows = context.rows
    unacked = not_acked(rows) if context.sql.is_bounded else rows.c.time_acked.is_(None)
    return unacked & context.sql.is_unrouted(rows)


def some_unrouted(context: TableContext) -> sa.ColumnElement[bool]:
    """Return whether a message may be due before the row of its key, or its key has no row."""
    rows = context.rows
    if context.sql.is_bounded:
        # In index order. Without one, a planner with statistics from when few messages were unacked takes any index.
        block = context.sql.block_of(rows)
        first = sa.select(block).where(is_unrouted(context), of_any_key(context)).order_by(block).limit(1)
        return first.scalar_subquery().is_not(None)
    found = sa.select(rows.c.seq).where(is_unrouted(context), of_any_key(context))
    return context.sql.by_index(found, rows, "unrouted").exists()


def of_any_key(context: TableContext) -> sa.ColumnElement[bool]:
    """Return the condition that a message is at the start of the search or behind it, in a form that uses the index."""
    if context.sql.begins_at_bounds:
        return context.sql.block_of(context.rows) >= sa.bindparam("start", type_=sa.BigInteger)
    # Always true, since this database has no bounds.
    return context.sql.few(context.rows.c[MESSAGE_KEY]) >= sa.literal_column("''")
