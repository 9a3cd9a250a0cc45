"""Lower bounds at which the searches of claims begin, so that no search reads index entries of finished work.

A server keeps the index entries of dead rows while a transaction, such as a report or a forgotten session, holds a
snapshot that shows them. No bound passes a message that a claim could still find. A search that found nothing moves the
bound to the last position that it read. The bound moves only after all transactions that were open during the search
have ended, because they may still commit a message below that position.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from waterclock._support import moments
from waterclock.time import MIN_NS

UNASSIGNED = ""  # the value of ``assigned`` for a group that any consumer may have

LOOK_BACK_AT_LEAST = 30.0
"""Seconds after which a search begins at the lowest key, in case a server's clock or a sequence was set back."""

LOOK_BACK_SHARE = 20
"""After a search from the lowest key, the next such search waits at least this many times as long as it took."""

DISTRUST_FOR = 600.0
"""Seconds without a bound after a search found something below it: plain SQL sets keys that no trigger sees."""

MOST_PRIORITIES = 16
"""Priorities that have bounds: each one is searched separately, so many would cost more than they save."""

UNUSED_FOR = 60.0  # seconds after which a priority of which nothing is found leaves its place to another one

CLOCK_STEP = 100_000_000  # how far a bound of times stays behind the clock, ns: a corrected clock goes back by less

LATE_BY = 250_000_000
"""A trigger marks a message as late if it is put or changed with a due time at least this far in the past, ns. One
statement that puts very many messages takes longer.
"""

SAVE_EVERY = 10.0  # seconds between two writes of the bounds to the database, from which a new process reads them

SAVED_FOR = 600_000_000_000
"""How long ago, ns, a search from the lowest key must have confirmed bounds that a new process reads. Otherwise
processes that each live for a few seconds would never find a message below them."""


MOST_OWNERS = 100  # consumers of exclusive groups in a process that have bounds: a process may use any number of names

WRITTEN_WITHIN = 1_000_000_000
"""Within this time (ns) after a row's trigger has read the clock, the row's entries are in the indexes."""

_ORDER = itertools.count(1)


@dataclass(frozen=True, slots=True)
class BoundedSearch:
    """The start of a search."""

    low: int  # the key
    known: int  # the bound at that time
    began: float  # when it began, monotonic
    order: int  # a number that is greater than those of all that this process noted before


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The database as a search saw it."""

    now: int  # the database's time, ns
    oldest: int | None = None  # all transactions with a lower id had ended; None: it saw uncommitted changes, too
    mark: int | None = None  # the id of the search's transaction; None: unknown


class FirstTimes(NamedTuple):
    """The result of a `GroupSearch`, and the `Snapshot` that it saw. Some statements return it as a row."""

    now: int
    firsts: Sequence[int | None]  # the first time of each known priority, ns
    of_unassigned: int | None = None  # the highest priority; None: unknown
    own_firsts: Sequence[int | None] = ()
    of_mine: int | None = None
    oldest: int | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The end of a search, when it was noted, and the id of a transaction that began later."""

    end: int
    order: int
    mark: int | None = None


class ProvenBound:
    """A key below which nothing is found, even after later commits. Thread-safe.

    It advances in three searches. The first one ends at a key without finding anything. The transaction of the second
    one gets an id, and those that were in progress during the first search have lower ones. The third one begins once
    these have ended, so it sees their messages: if it finds nothing either, the bound is the key. The id of the first
    search's own transaction would not suffice: the transaction may have got it before it searched.
    """

    def __init__(self, lowest: int, value: int | None = None, checked: int = 0) -> None:
        self.lowest = lowest  # the lowest key
        self.value = lowest if value is None else value  # the bound
        self.checked = checked  # when a search from the lowest key was last made, by the database's clock, ns
        self._candidate: _Candidate | None = None
        self._looked_back = moments.monotonic()
        self._every = LOOK_BACK_AT_LEAST
        self._distrusted_until: float | None = None

    def begin(self) -> BoundedSearch:
        """Begin a search, before its transaction."""
        now, known = moments.monotonic(), self.value
        low = known
        if now - self._looked_back >= self._every:
            low, self._looked_back = self.lowest, now  # in one thread only
        return BoundedSearch(low, known, now, next(_ORDER))

    def at_value(self) -> BoundedSearch:
        """Return a search from the bound on, whose result is not noted."""
        return BoundedSearch(self.value, self.value, moments.monotonic(), next(_ORDER))

    @property
    def needs_mark(self) -> bool:
        """Whether the next search should learn the `Snapshot.mark`."""
        candidate = self._candidate
        return candidate is not None and candidate.mark is None and candidate.end > self.value

    def reset(self) -> None:
        """Begin at the lowest key again, because keys may lie below the bound."""
        self.value, self._candidate = self.lowest, None

    def found_nothing(self, search: BoundedSearch, end: int, snapshot: Snapshot) -> None:
        """Note that a search found nothing before ``end``."""
        if search.low > self.value:
            return  # another search has found something below since
        if search.low == self.lowest:
            self._looked_back, self.checked = moments.monotonic(), snapshot.now
            self._every = max(LOOK_BACK_AT_LEAST, LOOK_BACK_SHARE * (self._looked_back - search.began))
            if end < search.known:
                self._distrusted_until = self._looked_back + DISTRUST_FOR
        if self._distrusted_until is not None:
            if moments.monotonic() < self._distrusted_until:
                self.reset()
                return
            self._distrusted_until = None
        if snapshot.oldest is None:
            self.value = max(self.value, end)
            return
        candidate = self._candidate
        if candidate is not None and candidate.mark is not None:
            if snapshot.oldest < candidate.mark:
                return
            self.value = max(self.value, min(candidate.end, end))
        elif candidate is not None and snapshot.mark is not None and search.order > candidate.order:
            self._candidate = replace(candidate, mark=snapshot.mark)
            return
        self._candidate = _Candidate(end, next(_ORDER))


class DrawnSeqs:
    """The greatest seqs that the last searches saw, so that a bound does not pass numbers that were just drawn."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=8)  # with when it was seen, monotonic

    def note(self, newest: int | None, at: float) -> None:
        """Note the greatest seq, of messages that are not committed, too; None: the table is empty."""
        if self._seen and (newest is None or newest < self._seen[-1][0]):
            self._seen.clear()  # TRUNCATE may have restarted the numbers
        if newest is not None:
            self._seen.append((newest, at))

    def before(self, now: float) -> int | None:
        """Return the greatest seq whose message, and all below it, are written unless their INSERT waits for a lock."""
        written = now - WRITTEN_WITHIN / 1e9
        return max((seq for seq, at in self._seen.copy() if at <= written), default=None)

    def clear(self) -> None:
        """Forget them, because the numbers may have been restarted."""
        self._seen.clear()


@dataclass(frozen=True, slots=True)
class GroupSearch:
    """The starts of a search for due groups: for each priority, from the highest, unassigned and a consumer's own."""

    consumer: str
    priorities: list[int]
    unassigned: list[BoundedSearch]
    own: list[BoundedSearch]

    @property
    def lows(self) -> dict[int, int]:
        """The start of each search for unassigned groups, by priority."""
        return dict(zip(self.priorities, (one.low for one in self.unassigned), strict=True))

    def firsts(
        self, starts: Sequence[BoundedSearch], found: Sequence[Mapping[int, int]], *, waits: bool
    ) -> list[int | None]:
        """Return the first time of each priority, from those by priority that several searches found.

        If ``waits``, a statement waited for a lock: then no bound advances.
        """
        every = (
            [*found, {one: start.known for one, start in zip(self.priorities, starts, strict=True)}] if waits else found
        )
        return [min((of[one] for of in every if one in of), default=None) for one in self.priorities]


class GroupBounds:
    """Bounds of the times at which groups are due, for each priority and each owner: none, or the consumer."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, int], ProvenBound] = {}
        self._found_at: dict[int, float] = {}  # when something of a priority was found last, monotonic

    def begin(self, me: str) -> GroupSearch:
        """Begin a search of the priorities that are known, before its transaction."""
        return self._search(me, ProvenBound.begin)

    def at_values(self, me: str) -> GroupSearch:
        """Return a search from the bounds on, whose result is not noted: its transaction may have changed groups."""
        return self._search(me, ProvenBound.at_value)

    def low(self, who: str, priority: int) -> int:
        """Return the time before which no group of an owner and a priority is due, ns."""
        bound = self._bounds.get((who, priority))
        return MIN_NS if bound is None else bound.value

    def learn(self, who: str, priority: int, most: int | None = None) -> None:
        """Begin a bound if a priority is new, unless ``most`` priorities that are in use have bounds."""
        if (who, priority) not in self._bounds:
            self._add(who, priority, most or MOST_PRIORITIES)

    def _search(self, me: str, start: Callable[[ProvenBound], BoundedSearch]) -> GroupSearch:
        bounds = self._bounds
        known = sorted({priority for _, priority in bounds}, reverse=True)
        never = ProvenBound(MIN_NS)
        unassigned, own = ([start(bounds.get((who, one), never)) for one in known] for who in (UNASSIGNED, me))
        return GroupSearch(me, known, unassigned, own)

    def needs_mark(self, me: str) -> bool:
        """Return whether the next search should learn the `Snapshot.mark`."""
        return any(bound.needs_mark for (who, _), bound in self._bounds.items() if who in (UNASSIGNED, me))

    def note(self, search: GroupSearch, found: Any) -> None:
        """Note the result of a search, a `FirstTimes`."""
        snapshot = Snapshot(found.now, found.oldest, found.mark)
        sides = [(UNASSIGNED, search.unassigned, found.firsts or [], found.of_unassigned)]
        if search.consumer != UNASSIGNED:
            sides.append((search.consumer, search.own, found.own_firsts or [], found.of_mine))
        for who, searches, firsts, level in sides:
            if level is not None:
                self.learn(who, level)
            for priority, one, first in zip(search.priorities, searches, firsts, strict=True):
                end = found.now if first is None else first
                if first is not None:
                    self._found_at[priority] = moments.monotonic()
                self._found_nothing((who, priority), one, min(end, found.now - CLOCK_STEP), snapshot)

    def lows(self) -> dict[int, int]:
        """Return the times before which no unassigned groups are due, by priority, ns."""
        return {priority: bound.value for priority, bound in self.of_unassigned().items()}

    def of_unassigned(self) -> dict[int, ProvenBound]:
        """Return the bounds of unassigned groups by priority."""
        return {priority: bound for (who, priority), bound in self._bounds.items() if who == UNASSIGNED}

    def start(self, values: dict[int, int], checked: int) -> None:
        """Begin with another process's bounds of unassigned groups, and when it confirmed them."""
        bounds = {priority: ProvenBound(MIN_NS, value, checked) for priority, value in values.items()}
        self._bounds |= {(UNASSIGNED, priority): bound for priority, bound in bounds.items()}

    def _add(self, who: str, priority: int, most: int) -> None:
        bounds, now = self._bounds, moments.monotonic()
        owners, priorities = {owner for owner, _ in bounds}, {known for _, known in bounds}
        if len(owners | {who}) > MOST_OWNERS:
            self._bounds = {}
            return
        if len(priorities | {priority}) > most:
            unused = [one for one in priorities if now - self._found_at.get(one, 0.0) > UNUSED_FOR]
            if not unused:
                return
            bounds = {key: bound for key, bound in bounds.items() if key[1] not in unused}
        self._found_at = {one: at for one, at in self._found_at.items() if one in priorities} | {priority: now}
        self._bounds = {**bounds, (who, priority): ProvenBound(MIN_NS)}

    def _found_nothing(self, key: tuple[str, int], search: BoundedSearch, end: int, snapshot: Snapshot) -> None:
        bound = self._bounds.get(key)
        if bound is None:
            return
        if snapshot.now < search.known:  # the server's clock was set back
            bound.reset()
        else:
            bound.found_nothing(search, end, snapshot)


class SavedBounds:
    """The bounds of one table as the database has them."""

    def __init__(self, text: str | None) -> None:
        self._values: dict[str, Any] = json.loads(text or "{}")
        self._looked_at = moments.monotonic()
        # When all messages of groups were last checked, by the database's clock, ns.
        self.checked_whole_at: int = self._values.get("checked_whole_at", 0)
        # All rows of groups or keys that ended before then are deleted, ns.
        self.ended_until: int = self._values.get("ended_until", MIN_NS)

    def is_due(self) -> bool:
        """Return whether they may be written again."""
        return moments.monotonic() - self._looked_at >= SAVE_EVERY

    def changed(
        self, routed: ProvenBound, due: dict[int, ProvenBound], sleeping: dict[int, ProvenBound] | None = None
    ) -> str | None:
        """Return the text to write; None if the database has it."""
        self._looked_at = moments.monotonic()
        used: list[ProvenBound] = []
        values: dict[str, Any] = {}
        for name, bounds in (("due", due), ("sleeping", sleeping or {})):
            set_ones = {one: bound for one, bound in sorted(bounds.items()) if bound.value != bound.lowest}
            if set_ones:
                values[name] = [[one, bound.value] for one, bound in set_ones.items()]
                used += set_ones.values()
        if routed.value != routed.lowest:
            values["routed"] = routed.value
            used.append(routed)
        if values:
            values["checked"] = min(bound.checked for bound in used)
        if self.checked_whole_at:
            values["checked_whole_at"] = self.checked_whole_at
        if values == {name: value for name, value in self._values.items() if name != "ended_until"}:
            return None  # the end of deleted rows alone, which moves with the clock, is not worth a write
        return json.dumps(values | {"ended_until": self.ended_until})

    def written(self, text: str) -> None:
        self._values = json.loads(text)

    def read(self, now: int) -> tuple[int | None, dict[int, int], dict[int, int], int]:
        """Return the bounds of routing, due groups by priority and sleeping keys, and when they were confirmed."""
        values = self._values
        checked = values.get("checked", 0)
        if not 0 <= now - checked <= SAVED_FOR:
            return None, {}, {}, 0
        return values.get("routed"), dict(values.get("due", [])), dict(values.get("sleeping", [])), checked
