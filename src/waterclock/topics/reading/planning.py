"""Cuts a range of a topic into slices, from the catalogue alone. It opens no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import Damage, located
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import KEPT
from waterclock.topics.format.row_groups import RowGroup
from waterclock.topics.model.counter import Counter
from waterclock.topics.reading.contiguity import Gap, LedgerSequence, look_in
from waterclock.topics.reading.pruning import ALL, ReadFilter
from waterclock.topics.reading.sealed_ledger import SealedLedger, checked_row_groups
from waterclock.topics.reading.slicing import Slice, SliceRun, TopicAddress
from waterclock.topics.store.ledger_files import LostFileError

MOST_SLICES = 10_000
"""A plan joins more ledgers than this into about as many runs: Spark's driver takes a millisecond per task."""

_LEDGERS_AT_ONCE = 10_000
"""Rows of the catalogue that are fetched at once: drivers hold a whole result in memory, 300 MB for 10⁶ ledgers."""


def plan_slices(
    storage: Storage,
    start: Position,
    stop: Position | None,
    max_messages: int,
    wanted: ReadFilter = ALL,
    damage: Damage | None = None,
) -> list[Slice]:
    """Plan like `plan_runs`, but return a slice for each ledger of a run."""
    planned: list[Slice] = []
    for part in plan_runs(storage, start, stop, max_messages, wanted, damage):
        if isinstance(part, Slice):
            planned.append(part)
        else:
            planned.extend(part.slices())
    return planned


def plan_runs(
    storage: Storage,
    start: Position,
    stop: Position | None,
    max_messages: int,
    wanted: ReadFilter = ALL,
    damage: Damage | None = None,
) -> list[Slice | SliceRun]:
    """Cut the wanted parts of a range into slices of about ``max_messages``, in one snapshot.

    A slice can still be read if its ledger was sealed, compacted or deleted after it was cut; a deleted ledger until
    its grace time has ended.

    Raises `DamagedError` if a ledger is missing or its row is corrupt.

    Parameters
    ----------
    max_messages
        If the topic has more than `MOST_SLICES` times as many, slices are larger, so that planning need not look into
        each ledger. If it has more ledgers than that, several form one run.
    damage
        The policy for missing ledgers and those with a damaged row; None: they are an error. Readers of the slices
        check the entries.
    """
    damage = damage or Damage(storage.name)

    def meet(gap: Gap | None) -> None:
        if gap is not None:
            damage.meet(gap.error, gap.messages)

    with storage.backend.snapshot() as connection:
        topic = storage.row(connection)
        head = Counter.of_row(topic).position
        end = head if stop is None else min(stop, head)
        share = (topic["ordinal"] - topic["first_ordinal"]) // MOST_SLICES
        many = min(topic["ledger"], end.ledger) - max(topic["first_ledger"], start.ledger) > MOST_SLICES
        plan = _Plan(storage, connection, start, end, max(max_messages, share), wanted, damage, share if many else 0)
        sequence = LedgerSequence(storage, connection, start, end, topic)
        for row in _ledgers_of(storage, connection, start.ledger, end.ledger, wanted):
            meet(sequence.follow(row.ledger, row.first_ordinal, row.messages))
            try:
                if row.chosen or row.state == "lost":
                    plan.add_ledger(row)
            except DamagedError as error:
                damage.meet(located(error, storage.name, ledger=row.ledger), row.messages)
            except LostFileError as error:
                damage.meet(error, row.messages)
        meet(sequence.end())
        if end.ledger == head.ledger:
            plan.add_entries(head.ledger, head.entry)
        return plan.slices()


class _Unit(NamedTuple):
    """The smallest unit of a slice: an entry, a row group of a ledger, or a whole sealed ledger."""

    # As of `Slice`.
    start: Position
    stop: Position
    messages: int
    path: str | None = None
    # The first and the last of the file's row groups that hold it; None: all that hold the ledger.
    numbers: tuple[int, int] | None = (0, 0)
    # The file's length in bytes, and its checksums for the ledger in the catalogue.
    size: int = 0
    checksums: bytes | None = None


class _LedgerRow(NamedTuple):
    """The columns of a ledger that a plan reads; SQLAlchemy's own rows take 2 µs for each value by name."""

    ledger: int
    state: str
    entries: int
    messages: int
    first_ordinal: int
    path: str
    file_bytes: int
    checksums: bytes | None
    lost_in_file: int
    shares: bool  # whether it shares the file with other ledgers
    chosen: bool  # whether it may hold a wanted message
    bounds: Sequence[int | None] = ()  # the wanted first and last value of each time, in their order


def _ledgers_of(
    storage: Storage, connection: sa.Connection, first: int, last: int, wanted: ReadFilter
) -> Iterator[_LedgerRow]:
    columns: list[Any] = [ledgers.c[name] for name in _LedgerRow._fields[:-3]]
    columns += [
        ledgers.c.bytes != ledgers.c.file_bytes,
        sa.and_(sa.true(), *wanted.conditions(ledgers)).label("chosen"),
    ]
    columns += [ledgers.c[f"{end}_{time}"] for time in wanted.times for end in ("begin", "end")]
    numbers = ledgers.c.ledger.between(sa.bindparam("first"), sa.bindparam("last"))
    statement = sa.select(*columns).where(ledgers.c.topic_id == storage.topic_id, numbers)
    statement = statement.order_by(ledgers.c.ledger).limit(_LEDGERS_AT_ONCE)
    while True:
        rows = connection.execute(statement, {"first": first, "last": last}).all()
        for row in rows:
            yield _LedgerRow(*row[:11], bounds=row[11:]) if wanted.times else _LedgerRow(*row)
        if len(rows) < _LEDGERS_AT_ONCE:
            return
        first = rows[-1][0] + 1


class _Plan:
    """Joins consecutive pieces of a ledger or of a file into slices.

    It looks into a ledger only to cut it: if it is larger than a slice, if the range begins or ends in it, if only some
    of it is wanted, or if a slice begins or ends in a file that ledgers share.
    """

    def __init__(
        self,
        storage: Storage,
        connection: sa.Connection,
        start: Position,
        stop: Position,
        max_messages: int,
        wanted: ReadFilter,
        damage: Damage,
        run_messages: int,
    ) -> None:
        self._storage = storage
        self._connection = connection
        self._start = start
        self._stop = stop
        self._max_messages = max_messages
        self._wanted = wanted
        self._damage = damage
        self._address = TopicAddress.of(storage)
        self._joined = 0  # messages of the last run
        # The ledgers that lie wholly in the range.
        self._whole = range(start.ledger + (start[1:] != (0, 0)), stop.ledger)
        self._run_messages = run_messages  # ledgers per run; 0: ledgers are not joined
        self._slices: list[Slice | SliceRun] = []
        self._run: tuple[_Unit, _Unit] | None = None  # the first and the last piece of the next slice
        self._messages = 0
        self._checksums: dict[bytes, None] = {}  # those of the next slice's ledgers, each once, in order

    def add_ledger(self, row: _LedgerRow) -> None:
        """Add a ledger that is not open."""
        if row.ledger == self._stop.ledger and self._stop[1:] == (0, 0):
            return
        if row.state == "lost":
            self._end_run()  # no slice crosses it: the file that it shared may still hold it
        elif row.state != "sealed":
            self.add_entries(row.ledger, row.entries)
        elif not self._add_whole(row):
            for piece in self._row_groups(row):
                self._join(piece)

    def add_entries(self, ledger: int, count: int) -> None:
        """Add the entries of a ledger that is not sealed and has had so many."""
        chosen = sa.and_(KEPT, *self._wanted.conditions(entries)).label("chosen")
        statement = (
            sa.select(entries.c.entry, entries.c.messages, chosen)
            .where(entries.c.topic_id == self._storage.topic_id, entries.c.ledger == ledger)
            .order_by(entries.c.entry)
        )
        rows = self._connection.execute(statement).all()
        self._meet_missing(ledger, [row.entry for row in rows], count)
        for row in rows:
            if row.chosen:
                messages = self._within(ledger, row.entry, row.messages)
                self._join(_Unit(Position(ledger, row.entry, 0), Position(ledger, row.entry + 1, 0), messages))

    def _within(self, ledger: int, entry: int, count: int) -> int:
        """Return how many messages of an entry are in the range, so that a reader notices missing ones."""
        first = self._start.index if self._start[:2] == (ledger, entry) else 0
        behind = min(self._stop.index, count) if self._stop[:2] == (ledger, entry) else count
        return max(behind - first, 0)

    def _meet_missing(self, ledger: int, numbers: Sequence[int], count: int) -> None:
        """Report missing entries: they are in no slice, so no reader would notice them later."""
        for before, behind in pairwise([-1, *numbers, count]):
            first, end = Position(ledger, before + 1, 0), Position(ledger, behind, 0)
            if behind > before + 1 and first < self._stop and end > self._start:
                begin, stop = max(first, self._start), min(end, self._stop)
                for gap in look_in(self._storage, self._connection, begin, stop, None).gaps:
                    self._damage.meet(gap.error, gap.messages)

    def slices(self) -> list[Slice | SliceRun]:
        self._end_run()
        return self._slices

    def _add_whole(self, row: _LedgerRow) -> bool:
        """Add a sealed ledger in one piece, if all of it is wanted and it fits into a slice."""
        ledger = row.ledger
        if ledger not in self._whole or row.lost_in_file or not self._wants_all(row):
            return False
        if not row.shares:
            if row.messages > self._max_messages:
                return False
            self._end_run()
            self._add_file(ledger, (row.messages, row.path, row.file_bytes, row.checksums))
            return True
        start, stop = Position(ledger, 0, 0), Position(ledger + 1, 0, 0)
        joins = self._run is not None and self._run[1].path == row.path
        if joins and self._run is not None and self._run[1].stop != start:
            return False
        if (self._messages if joins else 0) + row.messages > self._max_messages:
            return False
        place = (start, stop, row.messages, row.path, None)
        self._add(_Unit(*place, row.file_bytes, row.checksums), goes_on=joins)
        return True

    def _add_file(self, ledger: int, file: tuple[int, str, int, bytes | None]) -> None:
        last = self._slices[-1] if self._slices else None
        if not self._run_messages:
            self._slices.extend(SliceRun(self._address, ledger, [file]).slices())
        elif (
            isinstance(last, SliceRun)
            and last.first + len(last.ledgers) == ledger
            and self._joined + file[0] <= self._run_messages
        ):
            last.ledgers.append(file)
            self._joined += file[0]
        else:
            self._slices.append(SliceRun(self._address, ledger, [file]))
            self._joined = file[0]

    def _wants_all(self, row: _LedgerRow) -> bool:
        if self._wanted.sources is not None:
            return False
        for (first, last), begin, end in zip(
            self._wanted.times.values(), row.bounds[::2], row.bounds[1::2], strict=True
        ):
            if begin is None or end is None or begin < first or end > last:
                return False
        return True

    def _row_groups(self, row: _LedgerRow) -> list[_Unit]:
        ledger, wanted = row.ledger, self._wanted
        path, size, checksums = row.path, row.file_bytes, row.checksums
        file = None if wanted.sources is None else SealedLedger(self._storage, self._row(ledger))
        groups = self._look_up(ledger) if file is None else file.groups
        starts = [Position(ledger, group.entry, group.index) for group in groups]
        stops = [*starts[1:], Position(ledger + 1, 0, 0)]
        by_source = None
        if file is not None:
            by_source = wanted.row_groups(file.metadata)
        return [
            _Unit(starts[i], stops[i], group.messages, path, (number, number), size, checksums)
            for i, (group, number) in enumerate(zip(groups, _numbers(groups), strict=True))
            if (by_source is None or by_source[number]) and wanted.meets(group.bounds)
        ]

    def _look_up(self, ledger: int) -> list[RowGroup]:
        return checked_row_groups(self._row(ledger))[0]

    def _row(self, ledger: int) -> sa.RowMapping:
        here = (ledgers.c.topic_id == self._storage.topic_id, ledgers.c.ledger == ledger)
        return self._connection.execute(sa.select(ledgers).where(*here)).mappings().one()

    def _join(self, piece: _Unit) -> None:
        if piece.start < self._stop and piece.stop > self._start:
            self._add(piece, goes_on=self._run is not None and self._goes_on(self._run[1], piece))

    def _goes_on(self, last: _Unit, piece: _Unit) -> bool:
        fits = self._messages + piece.messages <= self._max_messages
        if piece.path is None:
            return fits and last.stop == piece.start and last.start.ledger == piece.start.ledger
        if last.path != piece.path:
            return False
        before, number = self._held_by(last)[1], self._held_by(piece)[0]
        # A lost row group lies between them, and is not read.
        adjoins = last.stop == piece.start and number <= before + 1
        # Two slices of one row group would both read it, so it is not cut between the ledgers that share it.
        return (fits and adjoins) or before == number

    def _add(self, piece: _Unit, *, goes_on: bool) -> None:
        if not goes_on:
            self._end_run()
        self._run = (piece if self._run is None else self._run[0], piece)
        self._messages += piece.messages
        if piece.checksums is not None:
            self._checksums[piece.checksums] = None

    def _end_run(self) -> None:
        if self._run is not None:
            first, last = self._run
            groups = (0, 0) if first.path is None else (self._held_by(first)[0], self._held_by(last)[1] + 1)
            start, stop = max(self._start, first.start), min(self._stop, last.stop)
            place = (start, stop, self._messages, first.path, groups)
            self._slices.append(Slice(self._address, *place, first.size, tuple(self._checksums)))
        self._run, self._messages, self._checksums = None, 0, {}

    def _held_by(self, piece: _Unit) -> tuple[int, int]:
        """Return the numbers of the first and the last row group of the file that hold a piece."""
        if piece.numbers is not None:
            return piece.numbers
        numbers = _numbers(self._look_up(piece.start.ledger))
        return numbers[0], numbers[-1]


def _numbers(groups: Sequence[RowGroup]) -> list[int]:
    """Return the numbers in the file of a ledger's row groups."""
    return [number if group.number is None else group.number for number, group in enumerate(groups)]
