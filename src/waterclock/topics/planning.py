"""Planning: a range of a topic is cut into slices, from what the catalogue knows, without opening a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.pruning import ALL, Wanted
from waterclock.topics.row_groups import RowGroup, row_groups_from_json
from waterclock.topics.sealed_file import parsed_footer
from waterclock.topics.slicing import Slice
from waterclock.topics.storage import Storage


def plan_slices(
    storage: Storage, start: Position, stop: Position | None, max_messages: int, wanted: Wanted = ALL
) -> list[Slice]:
    """Cut what is wanted of a range of a topic into slices of about ``max_messages``, as one snapshot shows it.

    A slice that was not sealed when it was cut can still be read when it has been sealed since, and one that was
    compacted since from where it is now. A ledger that was deleted since can be read until its grace time has ended.
    """
    statement = (
        _ledgers_of(storage, wanted, max_messages)
        .where(ledgers.c.ledger >= start.ledger, *wanted.conditions(ledgers))
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        head = Counter.of_row(storage.row(connection)).position
        end = head if stop is None else min(stop, head)
        plan = _Plan(storage, connection, start, end, max_messages, wanted)
        for row in connection.execute(statement.where(ledgers.c.ledger <= end.ledger)).mappings().all():
            plan.add_ledger(row)
        if end.ledger == head.ledger:
            plan.add_entries(head.ledger)
        return plan.slices()


class _Piece(NamedTuple):
    """What is not cut, or need not be: an entry, a row group of a ledger, or a whole sealed ledger.

    Attributes
    ----------
    start, stop, messages, path
        As of `Slice`.
    numbers
        The first and the last of the file's row groups that hold it; None: all that hold the ledger.
    is_whole_file
        Whether the file holds nothing else.
    """

    start: Position
    stop: Position
    messages: int
    path: str | None = None
    numbers: tuple[int, int] | None = (0, 0)
    is_whole_file: bool = False


def _ledgers_of(storage: Storage, wanted: Wanted, max_messages: int) -> sa.Select[*tuple[Any, ...]]:
    columns: list[Any] = [ledgers.c[name] for name in ("ledger", "state", "messages", "path")]
    columns += [ledgers.c[f"{end}_{time}"] for time in wanted.times for end in ("begin", "end")]
    columns.append((ledgers.c.bytes != ledgers.c.file_bytes).label("shares"))  # its part of the file is not all of it
    if wanted.sources is None:
        # A ledger that fits into a slice is mostly taken whole, and then its row groups do not matter.
        columns.append(sa.case((ledgers.c.messages > max_messages, ledgers.c.row_groups)).label("row_groups"))
    else:
        columns += [ledgers.c.row_groups, ledgers.c.footer]
    return sa.select(*columns).where(ledgers.c.topic_id == storage.topic_id)


class _Plan:
    """Joins pieces of one ledger or of one file that follow one another into slices.

    It looks into a ledger only where that has to be cut: where it holds more than a slice may, where the range begins
    or ends in it, where not all of it is wanted, and where a slice begins or ends in a file that ledgers share.
    """

    def __init__(
        self,
        storage: Storage,
        connection: sa.Connection,
        start: Position,
        stop: Position,
        max_messages: int,
        wanted: Wanted,
    ) -> None:
        self._storage = storage
        self._connection = connection
        self._start = start
        self._stop = stop
        self._max_messages = max_messages
        self._wanted = wanted
        self._url = storage.backend.url.render_as_string(hide_password=False)
        self._slices: list[Slice] = []
        self._run: tuple[_Piece, _Piece] | None = None  # the first and the last piece of the slice to come
        self._messages = 0

    def add_ledger(self, row: sa.RowMapping) -> None:
        """Add a ledger that is not open."""
        if self._stop == Position(row["ledger"], 0, 0):
            return
        if row["state"] != "sealed":
            self.add_entries(row["ledger"])
        elif not self._add_whole(row):
            for piece in self._row_groups(row):
                self._join(piece)

    def add_entries(self, ledger: int) -> None:
        """Add the entries of a ledger that is not sealed."""
        statement = (
            sa.select(entries.c.entry, entries.c.messages)
            .where(
                entries.c.topic_id == self._storage.topic_id,
                entries.c.ledger == ledger,
                *self._wanted.conditions(entries),
            )
            .order_by(entries.c.entry)
        )
        for row in self._connection.execute(statement):
            self._join(_Piece(Position(ledger, row.entry, 0), Position(ledger, row.entry + 1, 0), row.messages))

    def slices(self) -> list[Slice]:
        """Give what was joined."""
        self._end_run()
        return self._slices

    def _add_whole(self, row: sa.RowMapping) -> bool:
        """Add a sealed ledger in one piece, where none of it is left out and it fits into a slice."""
        ledger = row["ledger"]
        start, stop = Position(ledger, 0, 0), Position(ledger + 1, 0, 0)
        if start < self._start or stop > self._stop or not self._wants_all(row):
            return False
        joins = row["shares"] and self._run is not None and self._run[1].path == row["path"]
        if joins and self._run is not None and self._run[1].stop != start:
            return False
        if (self._messages if joins else 0) + row["messages"] > self._max_messages:
            return False
        self._add(_Piece(start, stop, row["messages"], row["path"], None, not row["shares"]), goes_on=joins)
        return True

    def _wants_all(self, row: sa.RowMapping) -> bool:
        if not self._wanted.times:
            return self._wanted.sources is None
        return self._wanted.sources is None and all(
            row[f"begin_{time}"] is not None and first <= row[f"begin_{time}"] and row[f"end_{time}"] <= last
            for time, (first, last) in self._wanted.times.items()
        )

    def _row_groups(self, row: sa.RowMapping) -> list[_Piece]:
        ledger, wanted = row["ledger"], self._wanted
        groups = self._look_up(ledger) if row["row_groups"] is None else row_groups_from_json(row["row_groups"])
        starts = [Position(ledger, group.entry, group.index) for group in groups]
        stops = [*starts[1:], Position(ledger + 1, 0, 0)]
        by_source = None
        if wanted.sources is not None:
            by_source = wanted.row_groups(parsed_footer(self._storage.files, row["path"], row["footer"]))
        return [
            _Piece(starts[i], stops[i], group.messages, row["path"], (number, number))
            for i, (group, number) in enumerate(zip(groups, _numbers(groups), strict=True))
            if (by_source is None or by_source[number]) and wanted.meets(group.bounds)
        ]

    def _look_up(self, ledger: int) -> list[RowGroup]:
        statement = sa.select(ledgers.c.row_groups).where(
            ledgers.c.topic_id == self._storage.topic_id, ledgers.c.ledger == ledger
        )
        return row_groups_from_json(self._connection.execute(statement).scalar_one())

    def _join(self, piece: _Piece) -> None:
        if piece.start < self._stop and piece.stop > self._start:
            self._add(piece, goes_on=self._run is not None and self._goes_on(self._run[1], piece))

    def _goes_on(self, last: _Piece, piece: _Piece) -> bool:
        fits = self._messages + piece.messages <= self._max_messages
        if piece.path is None:
            return fits and last.stop == piece.start and last.start.ledger == piece.start.ledger
        if last.path != piece.path:
            return False
        # Two slices of one row group would both read it, so it is not cut between the ledgers that share it.
        return (fits and last.stop == piece.start) or self._held_by(last)[1] == self._held_by(piece)[0]

    def _add(self, piece: _Piece, *, goes_on: bool) -> None:
        if not goes_on:
            self._end_run()
        self._run = (piece if self._run is None else self._run[0], piece)
        self._messages += piece.messages

    def _end_run(self) -> None:
        if self._run is not None:
            first, last = self._run
            groups = (self._held_by(first)[0], self._held_by(last)[1] + 1) if not first.is_whole_file else None
            part = Slice(
                self._url,
                self._storage.topic_id,
                self._storage.name,
                self._storage.files.root,
                max(self._start, first.start),
                min(self._stop, last.stop),
                self._messages,
                first.path,
                (0, 0) if first.path is None else groups,
            )
            self._slices.append(part)
        self._run, self._messages = None, 0

    def _held_by(self, piece: _Piece) -> tuple[int, int]:
        """Say which row groups of the file hold a piece: the first and the last."""
        if piece.numbers is not None:
            return piece.numbers
        numbers = _numbers(self._look_up(piece.start.ledger))
        return numbers[0], numbers[-1]


def _numbers(groups: Sequence[RowGroup]) -> list[int]:
    """Say which row groups of the file those of a ledger are."""
    return [number if group.number is None else group.number for number, group in enumerate(groups)]
