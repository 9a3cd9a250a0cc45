"""Reads the messages stored at a position of a topic, and checks that no message before them is missing.

A topic has no gaps: ledgers, their entries, and messages are numbered consecutively, in rows and in files. Only ledgers
at the start may be missing, because they were deleted on purpose; the topic's row records how many. Any other gap is
damage, and the numbers before and after it show its size. Each query is one snapshot, so a deletion by another process
is seen completely or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import located
from waterclock.topics.catalogue.ledgers import ledger_from
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.counter import Counter

CHUNK_MESSAGES = 65_536
"""Maximum messages of unsealed entries fetched from the database at once."""

CHUNK_BYTES = 8 << 20
"""Maximum bytes of these; a single entry may be larger."""

CHUNK_ENTRIES = 4096


class Gap(NamedTuple):
    """A gap in a topic: the error, and how many messages are missing."""

    error: DamagedError
    messages: int


class EntryRow(NamedTuple):
    """An entry as stored in the catalogue."""

    entry: int
    first_ordinal: int
    messages: int
    data: bytes


class NextPart(NamedTuple):
    """The data at a position."""

    ledger: int  # the ledger that was found there
    following: Position | None  # where to look next; None at the topic's end
    ordinal: int | None = None  # the number of the message there
    gaps: Sequence[Gap] = ()  # the gaps in front of it
    sealed: sa.RowMapping | None = None  # the row of the ledger, if it is sealed
    entries: Sequence[EntryRow] = ()  # otherwise, its entries from the position on, as many as one query reads


class _Ledger(NamedTuple):
    """A ledger whose entries are rows: their number, the range of their messages, and the next ledger."""

    number: int
    entries: int
    first_ordinal: int
    end: int
    behind: Position


def look(storage: Storage, position: Position, stop: Position, ordinal: int | None) -> NextPart:
    """Read the data at ``position`` in one snapshot.

    Parameters
    ----------
    stop
        Position before which the reader stops; later gaps do not matter.
    ordinal
        The number of the message at ``position``, if known.
    """
    with storage.backend.snapshot() as connection:
        return look_in(storage, connection, position, stop, ordinal)


def look_in(
    storage: Storage, connection: sa.Connection, position: Position, stop: Position, ordinal: int | None
) -> NextPart:
    """Like `look`, in the caller's snapshot."""
    row = ledger_from(storage, connection, position.ledger)
    gaps: list[Gap] = []
    found = position
    if row is None or row["ledger"] > position.ledger:
        topic = storage.row(connection)
        counter = Counter.of_row(topic)
        if row is None and position >= counter.position:
            return NextPart(position.ledger, None)
        if row is not None:
            found, first = Position(row["ledger"], 0, 0), row["first_ordinal"]
        else:
            found, first = max(position, Position(counter.ledger, 0, 0)), counter.ordinal - counter.messages
        gaps += _ledgers_missing(storage, connection, (position, found, stop), first, topic)
        ordinal = None if found > position else ordinal
        if found >= stop:
            return NextPart(found.ledger, None, None, gaps)
        if row is None:
            ledger = _Ledger(counter.ledger, counter.entries, first, counter.ordinal, counter.position)
            return _rows(storage, connection, ledger, (found, stop), ordinal, gaps)
    following, end = Position(row["ledger"] + 1, 0, 0), row["first_ordinal"] + row["messages"]
    if ordinal is not None and found[1:] == (0, 0) and ordinal != row["first_ordinal"]:
        gaps.append(_unlike(storage, f"ledger {row['ledger']}", row["ledger"], (ordinal, row["first_ordinal"])))
        ordinal = None
    if row["state"] == "sealed":
        return NextPart(row["ledger"], following, end, gaps, sealed=row)
    if row["state"] == "lost":
        return NextPart(row["ledger"], following, end, gaps)
    ledger = _Ledger(row["ledger"], row["entries"], row["first_ordinal"], end, following)
    return _rows(storage, connection, ledger, (found, stop), ordinal, gaps)


def _ledgers_missing(
    storage: Storage,
    connection: sa.Connection,
    places: tuple[Position, Position, Position],
    first: int,
    topic: sa.RowMapping,
) -> list[Gap]:
    """Return the gaps between a position and the next data found, except for deliberate deletions."""
    position, found, stop = places
    begin = max(position.ledger, topic["first_ledger"])
    if begin >= found.ledger or max(position, Position(begin, 0, 0)) >= stop:
        return []
    return [ledgers_gap_before(storage, connection, found.ledger, first, topic)]


def ledgers_gap_before(
    storage: Storage, connection: sa.Connection, ledger: int, ordinal: int, topic: sa.RowMapping
) -> Gap:
    """Describe the ledgers that are missing right before one that begins with the message of a number."""
    columns = (ledgers.c.ledger, ledgers.c.first_ordinal + ledgers.c.messages)
    before = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < ledger)
    last = connection.execute(
        sa.select(*columns).where(*before).order_by(ledgers.c.ledger.desc()).limit(1)
    ).one_or_none()
    first, begin = (topic["first_ledger"], topic["first_ordinal"]) if last is None else (last[0] + 1, last[1])
    which = f"ledger {first} is" if first == ledger - 1 else f"ledgers {first} to {ledger - 1} are"
    return _gap(storage, which, first, None, (begin, ordinal))


class LedgerSequence:
    """Follows the ledgers of a range, passed one by one in order, and reports missing ones.

    Parameters
    ----------
    start, stop
        The range: messages missing outside it do not matter.
    topic
        The topic's row, of the snapshot in which the ledgers are read.
    """

    def __init__(
        self, storage: Storage, connection: sa.Connection, start: Position, stop: Position, topic: sa.RowMapping
    ) -> None:
        self._storage = storage
        self._connection = connection
        self._topic = topic
        self._last = stop.ledger if stop[1:] != (0, 0) else stop.ledger - 1
        self._expected = max(start.ledger, topic["first_ledger"])
        self._ordinal: int | None = None

    def follow(self, ledger: int, first_ordinal: int, messages: int) -> Gap | None:
        """Take the next ledger, and return the gap before it, if any."""
        if not self._expected <= ledger <= self._last:
            return None
        gap = None
        if ledger > self._expected:
            gap = ledgers_gap_before(self._storage, self._connection, ledger, first_ordinal, self._topic)
        elif self._ordinal not in (None, first_ordinal):
            gap = _unlike(self._storage, f"ledger {ledger}", ledger, (self._ordinal, first_ordinal))
        self._expected, self._ordinal = ledger + 1, first_ordinal + messages
        return gap

    def end(self) -> Gap | None:
        """Return the gap behind the last ledger, if any."""
        topic = self._topic
        if self._expected > min(self._last, topic["ledger"] - 1):
            return None
        following = min(self._last + 1, topic["ledger"])
        after = sa.select(ledgers.c.ledger, ledgers.c.first_ordinal).where(
            ledgers.c.topic_id == self._storage.topic_id, ledgers.c.ledger >= following
        )
        row = self._connection.execute(after.order_by(ledgers.c.ledger).limit(1)).one_or_none()
        behind, begin = (topic["ledger"], topic["ordinal"] - topic["messages"]) if row is None else row
        return ledgers_gap_before(self._storage, self._connection, behind, begin, topic)


def _gap(storage: Storage, which: str, ledger: int, entry: int | None, ordinals: tuple[int, int]) -> Gap:
    begin, end = ordinals
    count = max(end - begin, 0)
    messages = f"messages {begin} to {end - 1}" if count else "according to the catalogue, without messages"
    error = DamagedError(f"{which} missing: {messages}")
    return Gap(located(error, storage.name, ledger=ledger, entry=entry), count)


def _unlike(storage: Storage, what: str, ledger: int, ordinals: tuple[int, int], entry: int | None = None) -> Gap:
    expected, found = ordinals
    error = DamagedError(f"{what} begins with message {found}, expected {expected}")
    return Gap(located(error, storage.name, ledger=ledger, entry=entry), max(found - expected, 0))


def _rows(
    storage: Storage,
    connection: sa.Connection,
    ledger: _Ledger,
    limits: tuple[Position, Position],
    ordinal: int | None,
    gaps: list[Gap],
) -> NextPart:
    """Select consecutive entries from a position on, as many as fit."""
    start, stop = limits
    last = ledger.entries - 1
    if stop.ledger == ledger.number:
        last = min(last, stop.entry if stop.index else stop.entry - 1)
    if start.entry > last:
        return NextPart(ledger.number, ledger.behind, ledger.end, gaps)
    sizes = _sizes(storage, connection, start, last)
    if not sizes or sizes[0].entry != start.entry:
        return _entries_missing(storage, connection, ledger, (start.entry, last), sizes, gaps)
    ordinal = ledger.first_ordinal if start.entry == 0 else ordinal
    if ordinal is not None and sizes[0].first_ordinal != ordinal:
        what = f"entry {start.entry} of ledger {ledger.number}"
        gaps.append(_unlike(storage, what, ledger.number, (ordinal, sizes[0].first_ordinal), start.entry))
    fitting = _fitting(sizes)
    end = sizes[fitting - 1].first_ordinal + sizes[fitting - 1].messages
    final = sizes[fitting - 1].entry
    if final == ledger.entries - 1 and end != ledger.end:
        gaps.append(_unlike(storage, f"the part after ledger {ledger.number}", ledger.number, (end, ledger.end), final))
    taken = _entries(storage, connection, start, final, sizes[:fitting])
    if final == ledger.entries - 1:
        return NextPart(ledger.number, ledger.behind, ledger.end, gaps, entries=taken)
    return NextPart(ledger.number, Position(ledger.number, final + 1, 0), end, gaps, entries=taken)


def _sizes(
    storage: Storage, connection: sa.Connection, start: Position, last: int
) -> Sequence[sa.Row[Any, Any, Any, Any]]:
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == start.ledger)
    statement = (
        sa.select(entries.c.entry, entries.c.messages, entries.c.bytes, entries.c.first_ordinal)
        .where(*here, entries.c.entry.between(start.entry, last))
        .order_by(entries.c.entry)
        .limit(CHUNK_ENTRIES)
    )
    return connection.execute(statement).all()


def _fitting(sizes: Sequence[sa.Row[Any, Any, Any, Any]]) -> int:
    """Count the entries to take at once: consecutive ones that are not too large together."""
    totals = zip(accumulate(row.messages for row in sizes), accumulate(row.bytes for row in sizes), strict=True)
    fitting = sum(1 for _ in takewhile(lambda total: total[0] <= CHUNK_MESSAGES and total[1] <= CHUNK_BYTES, totals))
    pairs = pairwise(sizes[: max(fitting, 1)])
    following = takewhile(
        lambda pair: (
            pair[1].entry == pair[0].entry + 1 and pair[1].first_ordinal == pair[0].first_ordinal + pair[0].messages
        ),
        pairs,
    )
    return 1 + sum(1 for _ in following)


def _entries(
    storage: Storage,
    connection: sa.Connection,
    start: Position,
    last: int,
    sizes: Sequence[sa.Row[Any, Any, Any, Any]],
) -> list[EntryRow]:
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == start.ledger)
    statement = sa.select(entries.c.entry, entries.c.data).where(*here, entries.c.entry.between(start.entry, last))
    data = {row.entry: row.data for row in connection.execute(statement)}
    return [EntryRow(row.entry, row.first_ordinal, row.messages, data[row.entry]) for row in sizes]


def _entries_missing(
    storage: Storage,
    connection: sa.Connection,
    ledger: _Ledger,
    numbers: tuple[int, int],
    sizes: Sequence[sa.Row[Any, Any, Any, Any]],
    gaps: list[Gap],
) -> NextPart:
    first, last = numbers
    if not sizes and last < ledger.entries - 1:  # after the reader's end: its number shows how much is missing
        sizes = _sizes(storage, connection, Position(ledger.number, first, 0), ledger.entries - 1)[:1]
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger.number, entries.c.entry < first)
    end = sa.select(entries.c.first_ordinal + entries.c.messages).where(*here).order_by(entries.c.entry.desc())
    before = connection.execute(end.limit(1)).scalar()
    begin = ledger.first_ordinal if before is None else before
    following = sizes[0].entry if sizes else ledger.entries
    ordinal = sizes[0].first_ordinal if sizes else ledger.end
    which = f"entry {first} of ledger {ledger.number} is"
    if following - 1 > first:
        which = f"entries {first} to {following - 1} of ledger {ledger.number} are"
    gaps.append(_gap(storage, which, ledger.number, first, (begin, ordinal)))
    if sizes:
        return NextPart(ledger.number, Position(ledger.number, following, 0), ordinal, gaps)
    return NextPart(ledger.number, ledger.behind, ledger.end, gaps)
