"""The statements, common to all databases, that claim messages in a table without groups."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.util import ClauseAdapter

from waterclock._support import moments
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.model.claims.bounds import LOOK_BACK_SHARE
from waterclock.tables.model.claims.claim import FIRST_SEQ, LOOK_BACK_EVERY, Claimed, Wanted
from waterclock.tables.model.claims.due_slots import due_order, in_slots, priorities_between, slots_of, time_in_slots
from waterclock.tables.model.row_conditions import is_waiting, not_acked
from waterclock.tables.model.schema import LATE, MESSAGE_KEY
from waterclock.time import MIN_NS

ABOVE_EVERY_PRIORITY = 2**31
BELOW_EVERY_PRIORITY = -(2**31) - 1
BEFORE_EVERY_TIME = MIN_NS  # the start of a level without a cursor: everything before 1970 is due

_Row = sa.Row[*tuple[Any, ...]]

_UNREAD = frozenset({"time_acked", "last_error", "consumer", "routed", "ack_held_at", "acked_by", MESSAGE_KEY})


@built_once(maxsize=256)
def columns_read(rows: sa.Table) -> tuple[sa.Column[Any], ...]:
    """Return the columns of a delivery. The user named some of them, so others in the same row need longer names."""
    return tuple(column for column in rows.columns if column.name not in _UNREAD)


_HOPS = 2  # levels that a claim reads one by one before it reads several at once: most tables have no more
_FIRST_LOOK, _LONG_LOOK = 256, 16_384  # how many messages it then reads at once: first, and after a worthwhile read
_DEEP = 32  # if levels have more messages than this on average, reading them one by one is faster


LONGEST_PAUSE = 30.0  # seconds after which the next look back happens, however slow the last one was
SLOW_LOOK = 0.005  # duration in seconds from which a look back counts as slow: the next claim then begins at its end
MOST_MARKS = 4  # maximum number of priorities with a cursor: each costs a lookup


LONG_WALK = 0.002
"""Duration in seconds of an empty claim, after which the next one first checks whether anything is due."""

_FADES = 0.97
"""Each claim multiplies the recorded duration by this, so that a method that was slow by chance is retried."""


class Walks:
    """Decides whether to check, before a claim, whether anything is due at all.

    A claim that finds nothing visits all priorities, which takes long with thousands of them. One scan of the index
    takes a tenth of that, unless few priorities have very many messages. So a claim checks first after a long empty
    claim, as long as the check takes less than half of its time. Thread-safe.
    """

    def __init__(self) -> None:
        self._walk = 0.0
        self._asking = 0.0
        self._has_walked = False
        self._has_asked = False
        self._has_just_asked = False

    def should_ask(self) -> bool:
        """Return whether the next claim should check first."""
        return self._walk >= LONG_WALK and self._asking * 2 <= self._walk

    def walked(self, seconds: float) -> None:
        """Record the duration of an empty claim, unless a check was a part of it."""
        if self._has_just_asked:
            self._has_just_asked = False
            return
        # The first one also compiles its statements, which takes longer than running them.
        self._walk = _damped(seconds, self._walk) if self._has_walked else 0.0
        self._has_walked = True
        self._asking *= _FADES

    def found(self) -> None:
        """Record that a claim found messages: the next one probably does, too."""
        self._walk = self._asking = 0.0
        self._has_just_asked = False

    def asked(self, seconds: float) -> None:
        """Record the duration of a check."""
        self._has_just_asked = True
        self._asking = _damped(seconds, self._asking) if self._has_asked else 0.0
        self._has_asked = True
        self._walk *= _FADES


def _damped(seconds: float, before: float) -> float:
    """Return a duration, or twice the one before if that is less: on a busy machine a single one may be far longer."""
    return min(seconds, 2 * before) if before else seconds


class ClaimCursor:
    """The cursor of claims: for each priority, the time_next before which nothing is due any more.

    Entries of claimed and acked messages stay in an index until no snapshot can see them, and a claim that begins at
    the first key steps over all of them. A snapshot held for minutes made claims seven times as slow. So a claim begins
    where its predecessor stopped. Messages that a long transaction commits before that position are found after a claim
    that gets too few, and within `LOOK_BACK_EVERY` seconds in any case. If the look back is slow, because of a million
    such entries, it is done less often (`LOOK_BACK_SHARE`, `LONGEST_PAUSE`).

    A claim that gets none from the cursor has looked from the first message on. If that was quick, or not much slower
    than the search from the cursor, the next claim does so, too: one that gets none costs two statements. One that gets
    some returns them at once, because each statement waits for the disk, and the next claim looks from the first on.

    Thread-safe.
    """

    def __init__(self) -> None:
        self.walks = Walks()  # durations of empty claims
        self._lock = threading.Lock()
        self._marks: dict[int, int] = {}
        self.had_enough = False  # whether the last claim, if recent, got as many messages as it wanted
        self._since = moments.monotonic()
        self._began = self._since
        self._from_cursor = 0.0
        self._looking_since: float | None = None
        self._every = LOOK_BACK_EVERY

    def now(self) -> Mapping[int, int]:
        """Return the cursor, ns by priority; empty once it is too old."""
        with self._lock:
            now = moments.monotonic()
            if now - self._since >= self._every:
                self._marks = {}
                self.had_enough = False
            if not self._marks:
                self._since = self._looking_since = now
            self._began, self._from_cursor = now, 0.0
            return dict(self._marks)

    @property
    def is_set(self) -> bool:
        """Whether the next claim begins at the cursor, unless that becomes too old before."""
        return bool(self._marks)

    def advance(self, claimed: Sequence[Claimed]) -> None:
        """Advance after a claim in its order that got as many messages as it wanted."""
        with self._lock:
            if self._looking_since is not None:
                self._time(moments.monotonic() - self._looking_since)
            self.had_enough = True
            self._set(self._marks, claimed)

    def look_back(self) -> None:
        """Begin a search from the first message on."""
        with self._lock:
            self._since = self._looking_since = moments.monotonic()
            self._from_cursor = self._since - self._began

    def looked_back(self, begin: Mapping[int, int], claimed: Sequence[Claimed]) -> None:
        """Note the messages claimed from ``begin`` on, if that is a cursor, and by a search from the first message."""
        with self._lock:
            took = 0.0 if self._looking_since is None else moments.monotonic() - self._looking_since
            self._time(took)
            self.had_enough = False
            is_current = self._marks == begin  # else another thread has changed it, maybe to forget it
            self._marks = {}
            if is_current and took >= max(SLOW_LOOK, 2 * self._from_cursor):
                self._set(begin, claimed)

    def _time(self, took: float) -> None:
        self._every = min(max(LOOK_BACK_EVERY, LOOK_BACK_SHARE * took), LONGEST_PAUSE)
        self._looking_since = None

    def _set(self, begin: Mapping[int, int], claimed: Sequence[Claimed]) -> None:
        marks = {**begin, **{one.row.priority: one.row.time_next for one in claimed}}
        self._marks = {} if len(marks) > MOST_MARKS else marks

    def forget(self) -> None:
        """Start at the first message again."""
        with self._lock:
            self._marks = {}
            self.had_enough = False


class ClaimsInSteps(ABC):
    """A database on which a claim is several statements: they lock the messages, and the last one takes them."""

    latest_first: bool
    """Whether its index, read from the highest priority down, has the latest message of a level first."""

    locks_by_key: bool  # as `TableDialect.locks_by_key`

    @abstractmethod
    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that ``column`` is in the list bound as ``name``."""

    @abstractmethod
    def take(self, connection: SqlConnection, rows: sa.Table, wanted: Wanted, ends: Sequence[tuple[int, int]]) -> None:
        """Claim locked messages: their seqs, each with the end of its lease in ns."""

    def claim(
        self,
        connection: SqlConnection,
        rows: sa.Table,
        wanted: Wanted,
        begin: Mapping[int, int],
        now: sa.ColumnElement[int],
    ) -> list[Claimed]:
        """Claim due messages."""
        if wanted.order:
            statement = _due_in_order(rows, now, wanted.where, wanted.order)
            found = list(connection.execute(statement, {"count": wanted.limit}))
        else:
            search = _Search(self, connection, rows, wanted, now)
            search.find(begin)
            found = search.found
        if not found:
            return []
        claimed: list[Claimed] = []
        ends: list[tuple[int, int]] = []
        lease = wanted.lease_length
        for row in found:
            length = lease.of(row.epoch, random.uniform(-1, 1)) if row.epoch else lease.shortest  # noqa: S311  # no secret
            until = row[-1] + length
            claimed.append(Claimed(row, until, row.expires_at is not None and row.expires_at <= row[-1]))
            ends.append((row.seq, until))
        self.take(connection, rows, wanted, ends)
        return claimed


class _Search:
    """Lock due messages that are not locked elsewhere, in the order of a claim.

    It goes level by level from the top, because a scan of one index from the highest priority down would step over all
    leased and scheduled messages. A level known from earlier claims is read together with the check whether there is a
    new one above it. If many levels have few messages each, none of them due, it reads the messages of many levels
    together.
    """

    def __init__(
        self, sql: ClaimsInSteps, connection: SqlConnection, rows: sa.Table, wanted: Wanted, now: sa.ColumnElement[int]
    ) -> None:
        self._sql = sql
        self._connection = connection
        self._rows = rows
        self._wanted = wanted
        self._now = now
        self._above = ABOVE_EVERY_PRIORITY
        self._left = wanted.limit
        self.found: list[_Row] = []  # `columns_read`, followed by the current time, ns

    def find(self, begin: Mapping[int, int]) -> None:
        """Continue until enough messages are found, or no level remains."""
        known = sorted(begin)
        hops = pause = _HOPS
        look = _FIRST_LOOK
        while self._left:
            if hops:
                while known and known[-1] >= self._above:
                    known.pop()
                level = known[-1] if known else None
                passed = self._hop(level, 0 if level is None else begin[level])
                if passed is None:
                    return
                hops -= passed
                continue
            levels = self._look_at_many(look)
            if levels is None:
                return
            if levels * _DEEP < look:
                pause = hops = 2 * pause
                look = _FIRST_LOOK
            else:
                look = _LONG_LOOK
                pause = hops = 1

    def _hop(self, level: int | None, low: int) -> int | None:
        """Read the next level, known or not; return the number of unknown ones, None after the last level."""
        if level is not None:
            self._lock_level(level, low)
            if not self._left:
                return 0
        higher = self._first_between(level)
        if higher is not None:
            if higher.first is not None and higher.first <= higher.now:
                self._lock_level(higher.priority, higher.first)
            self._above = higher.priority
            return 1
        if level is None:
            return None
        self._above = level
        return 0

    def _first_between(self, level: int | None) -> sa.Row[Any] | None:
        """Find the highest level below the last one, and above a known one if there is one."""
        named = None if level is None or not self._sql.latest_first else priorities_between(level, self._above)
        if named == []:
            return None
        values = {"above": self._above, "beneath": BELOW_EVERY_PRIORITY if level is None else level, "named": named}
        order = {"latest_first": self._sql.latest_first, "probes": level is not None, "is_named": named is not None}
        return self._connection.execute(_next_level(self._rows, self._now, **order), values).first()

    def _lock_level(self, level: int, low: int) -> None:
        values: dict[str, Any] = {"of": level, "bound": low, "low": low, "above": self._above, "count": self._left}
        if self._sql.locks_by_key:
            slots = slots_of(self._rows, low, self._wanted.about)
            self._lock_by_key(values | {"slots": slots, "named": priorities_between(level, self._above)})
        else:
            self.found += self._connection.execute(_due_at_level(self._rows, self._now, self._wanted.where), values)
        self._left = self._wanted.limit - len(self.found)

    def _lock_by_key(self, values: dict[str, Any]) -> None:
        named = {"slots_named": values["slots"] is not None, "levels_named": values["named"] is not None}
        statement = _due_by_key(self._rows, self._now, self._wanted.where, **named)
        values |= {"low": BEFORE_EVERY_TIME, "from": FIRST_SEQ}
        while True:
            seen = self._connection.execute(statement, values).all()
            ours = [row for row in seen if row.seq is not None]
            self.found += sorted(ours, key=_by_time)
            # Other consumers have locked the missing ones, or claimed them meanwhile.
            if len(seen) < values["count"] or len(ours) == len(seen):
                return
            last = max((row.waterclock_due_at, row.waterclock_nth) for row in seen)
            values |= {"low": last[0], "from": last[1] + 1, "count": values["count"] - len(ours)}

    def _look_at_many(self, most: int) -> int | None:
        """Read this many messages across levels; return the number of levels, None if all were read.

        The last level, which may be incomplete, is left for later.
        """
        rows, now, where = self._rows, self._now, self._wanted.where
        near = _near(rows, now, where, latest_first=self._sql.latest_first)
        edge = self._connection.execute(near, {"above": self._above, "most": most}).one()
        below = edge.lowest if edge.looked == most else BELOW_EVERY_PRIORITY
        if edge.looked and edge.due is not None and edge.due > below:
            values = {"above": self._above, "beneath": below, "count": self._left}
            seen = self._connection.execute(_due_between(rows, now, where), values).all()
            seqs = [row.seq for row in seen]
            locked = (
                self._connection.execute(_due_of(rows, now, where, self._sql), {"seqs": seqs}).all() if seqs else []
            )
            self.found += locked
            self._left = self._wanted.limit - len(self.found)
            if len(seqs) == values["count"]:
                if locked:  # another consumer is claiming the missing ones
                    return None
                below = seen[-1].priority
        if below == BELOW_EVERY_PRIORITY:
            return None
        self._above = below + 1
        return edge.levels


@built_once(maxsize=256)
def _next_level(
    rows: sa.Table, now: sa.ColumnElement[int], *, latest_first: bool, probes: bool, is_named: bool
) -> sa.Select[*tuple[Any, ...]]:
    """Select the highest level in between, with the time of its first message.

    A search that locks messages begins at that time. While a transaction holds an old snapshot, the index has entries
    of finished messages before it. MariaDB locks each of them in turn, which costs a hundred times as much as to pass
    over them in this search.
    """
    found = sa.select(rows.c.priority, rows.c.time_next).where(
        is_waiting(rows),
        rows.c.priority < sa.bindparam("above", type_=sa.BigInteger),
        rows.c.priority > sa.bindparam("beneath", type_=sa.BigInteger),
    )
    if not latest_first:
        level = found.order_by(rows.c.priority.desc(), rows.c.time_next).limit(1).subquery("level")
        return sa.select(level.c.priority, level.c.time_next.label("first"), now.label("now"))
    if probes:
        # Upwards, because a search from the highest priority down goes on through the dead entries of the known level.
        probe = rows.alias("probe")
        found = found.where(sa.exists().where(probe.c.time_acked.is_(None), _is_between(probe, "beneath", is_named)))
    level = found.order_by(rows.c.priority.desc()).limit(1).subquery("level")
    its = rows.alias("its")
    first = sa.select(its.c.time_next).where(is_waiting(its), its.c.priority == level.c.priority)
    first = first.order_by(*due_order(its)).limit(1).scalar_subquery()
    return sa.select(level.c.priority, first.label("first"), now.label("now"))


def _is_between(rows: sa.FromClause, beneath: str, is_named: bool) -> sa.ColumnElement[bool]:
    """Return the condition that a priority lies between two known ones: a range, or a list of names."""
    if is_named:
        return rows.c.priority.in_(sa.bindparam("named", type_=sa.BigInteger, expanding=True))
    low, high = (sa.bindparam(name, type_=sa.BigInteger) for name in (beneath, "above"))
    return (rows.c.priority > low) & (rows.c.priority < high)


@built_once(maxsize=256)
def _due_at_level(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None
) -> sa.Select[*tuple[Any, ...]]:
    level = sa.bindparam("of", type_=sa.BigInteger)
    other = rows.alias("other")
    between = sa.exists().where(
        is_waiting(other), other.c.priority > level, other.c.priority < sa.bindparam("above", type_=sa.BigInteger)
    )
    return (
        sa.select(*columns_read(rows), now)
        .where(
            rows.c.time_acked.is_(None),
            rows.c.priority == level,
            rows.c.time_next <= now,
            rows.c.time_next >= sa.bindparam("low", type_=sa.BigInteger),
            ~between,
            sa.true() if where is None else where,
        )
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


def _by_time(row: _Row) -> tuple[int, int]:
    return row.time_next, row.seq


@built_once(maxsize=256)
def _due_by_key(
    rows: sa.Table,
    now: sa.ColumnElement[int],
    where: sa.ColumnElement[bool] | None,
    *,
    slots_named: bool,
    levels_named: bool,
) -> sa.Select[*tuple[Any, ...]]:
    """Find due messages of a level and lock them by their seqs; those that others have locked are NULL.

    Late ones are found in their own index up to ``bound``, and the others from there on.
    """
    level, bound, low, first = (sa.bindparam(name, type_=sa.BigInteger) for name in ("of", "bound", "low", "from"))
    seen, late, other = rows.alias("seen"), rows.alias("late"), rows.alias("other")
    late_priority, late_due = (sa.column(name, sa.BigInteger) for name in LATE)
    between = sa.exists().where(other.c.time_acked.is_(None), _is_between(other, "of", levels_named))
    chosen = sa.true() if where is None else where
    due_at, slot = (time_in_slots(seen), [in_slots("slots")]) if slots_named else (seen.c.time_next, [])

    def search(
        of: Any, time: sa.ColumnElement[int], order: Sequence[sa.ColumnElement[int]], *which: sa.ColumnElement[bool]
    ) -> sa.Select[Any, int]:
        behind = (time > low) | ((time == low) & (of.c.seq >= first))
        its = time <= now, behind, *which, ~between, ClauseAdapter(of).traverse(chosen)
        found = sa.select(of.c.seq, time.label("time_next")).select_from(of).where(*its)
        return found.order_by(*order, of.c.seq).limit(sa.bindparam("count"))

    its = seen.c.time_acked.is_(None), seen.c.priority == level, due_at >= bound, *slot
    both = sa.union_all(
        search(seen, due_at, due_order(seen), *its),
        search(late, late_due, [late_due], late_priority == level, late_due < bound),
    ).subquery("both")
    due = sa.select(both).order_by(both.c.time_next, both.c.seq).limit(sa.bindparam("count")).subquery("due")
    its = rows.c.seq == due.c.seq, not_acked(rows), rows.c.priority == level, rows.c.time_next <= now, chosen
    return (
        sa.select(
            *columns_read(rows), due.c.time_next.label("waterclock_due_at"), due.c.seq.label("waterclock_nth"), now
        )
        .select_from(sa.outerjoin(due, rows, sa.and_(*its)))
        .with_for_update(skip_locked=True)
    )


@built_once(maxsize=256)
def _near(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None, *, latest_first: bool
) -> sa.Select[*tuple[Any, ...]]:
    """Read the first messages below a level: their number, the lowest level reached, and the first due message."""
    due = rows.c.time_next <= now if where is None else (rows.c.time_next <= now) & where
    near = (
        sa.select(rows.c.priority, sa.case((due, rows.c.priority)).label("due"))
        .where(is_waiting(rows), rows.c.priority < sa.bindparam("above", type_=sa.BigInteger))
        .order_by(rows.c.priority.desc(), *(column.desc() if latest_first else column for column in due_order(rows)))
        .limit(sa.bindparam("most", type_=sa.Integer))
        .subquery("near")
    )
    return sa.select(
        sa.func.min(near.c.priority).label("lowest"),
        sa.func.count().label("looked"),
        sa.func.count(near.c.priority.distinct()).label("levels"),
        sa.func.max(near.c.due).label("due"),
    )


@built_once(maxsize=256)
def _due_between(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None
) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(rows.c.seq, rows.c.priority)
        .where(
            is_waiting(rows),
            rows.c.priority < sa.bindparam("above", type_=sa.BigInteger),
            rows.c.priority > sa.bindparam("beneath", type_=sa.BigInteger),
            rows.c.time_next <= now,
            sa.true() if where is None else where,
        )
        .order_by(rows.c.priority.desc(), *due_order(rows), rows.c.seq)
        .limit(sa.bindparam("count", type_=sa.Integer))
    )


@built_once(maxsize=256)
def _due_of(
    rows: sa.Table, now: sa.ColumnElement[int], where: sa.ColumnElement[bool] | None, sql: ClaimsInSteps
) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*columns_read(rows), now)
        .where(
            sql.any_of(rows.c.seq, "seqs"),
            not_acked(rows),
            rows.c.time_next <= now,
            sa.true() if where is None else where,
        )
        .order_by(rows.c.priority.desc(), rows.c.time_next, rows.c.seq)
        .with_for_update(skip_locked=True)
    )


@built_once(maxsize=256)
def _due_in_order(
    rows: sa.Table,
    now: sa.ColumnElement[int],
    where: sa.ColumnElement[bool] | None,
    order: tuple[sa.ColumnElement[Any], ...],
) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(*columns_read(rows), now)
        .where(rows.c.time_acked.is_(None), rows.c.time_next <= now, sa.true() if where is None else where)
        .order_by(*order)
        .limit(sa.bindparam("count"))
        .with_for_update(skip_locked=True)
    )


def priority_levels(rows: sa.Table) -> sa.CTE:
    """Walk down the priorities of unacked messages, with one index lookup for each."""
    unacked = is_waiting(rows)
    top = sa.select(rows.c.priority).where(unacked).order_by(rows.c.priority.desc()).limit(1).scalar_subquery()
    levels = sa.select(top.label("priority")).cte("levels", recursive=True)
    below = (
        sa.select(rows.c.priority)
        .where(unacked, rows.c.priority < levels.c.priority)
        .order_by(rows.c.priority.desc())
        .limit(1)
        .scalar_subquery()
    )
    return levels.union_all(sa.select(below).where(levels.c.priority.is_not(None)))
