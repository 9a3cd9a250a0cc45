"""Slices: a range of a topic cut into pieces that other processes can read, each on its own, for Spark and its like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.damage import Damage, located
from waterclock.topics.file_checksums import FileChecksums, joined
from waterclock.topics.footers import footer_in_catalogue, parsed_footer
from waterclock.topics.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.losses import KEPT
from waterclock.topics.pruning import ALL, Wanted
from waterclock.topics.reading import Chunk, check_columns, cut, path_now, positioned, read_chunks
from waterclock.topics.row_groups import RowGroup, row_of
from waterclock.topics.sealed_file import SealedFile
from waterclock.topics.sealed_ledger import checked_row_groups, ledgers_share_a_file, measured_groups
from waterclock.topics.storage import Storage
from waterclock.topics.succession import Gap, look_in, missing_ledgers


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of one ledger, or of several that share a file. Can be pickled; holds no data and no open thing.

    Attributes
    ----------
    url, topic_id, topic
        The database, with its password, and the topic. Used for a piece that was not sealed when it was cut.
    ledgers
        Folder or URL of the ledger files.
    start, stop
        First position, and the one to stop before.
    messages
        How many messages there are at the most; exact but for the first and the last row group of a range.
    path
        Name of the sealed ledgers' file below ``ledgers``; None: its entries are rows of the database.
    groups
        Row groups of the file to read: the first, and the one to stop before.
    size
        The file's length, bytes.
    pieces
        For each of the row groups, where its first message stands and how many are wanted of it.
    checksums
        What the catalogue keeps of the file's checksums (`FileChecksums`), for each ledger; none: it has none.
    """

    url: str
    topic_id: int
    topic: str
    ledgers: str
    start: Position
    stop: Position
    messages: int
    path: str | None = None
    groups: tuple[int, int] = (0, 0)
    size: int = 0
    pieces: tuple[tuple[Position, int], ...] = ()
    checksums: tuple[bytes, ...] = ()


def plan_slices(
    storage: Storage,
    start: Position,
    stop: Position | None,
    max_messages: int,
    wanted: Wanted = ALL,
    damage: Damage | None = None,
) -> list[Slice]:
    """Cut what is wanted of a range of a topic into slices of about ``max_messages``, as one snapshot shows it.

    A slice that was not sealed when it was cut can still be read when it has been sealed since, and one that was
    compacted since from where it is now. A ledger that was deleted since can be read until its grace time has ended.

    Parameters
    ----------
    damage
        Decides about ledgers that are missing or of which the catalogue says nothing whole; None: that is an error.
        Those who read the slices look at each entry and row group.

    Raises
    ------
    DamagedError
        Where there are such.
    """
    damage = damage or Damage(storage.name)
    names = ("ledger", "state", "entries", "messages", "path", "file_bytes", "row_groups", "checksums")
    columns = [ledgers.c[name] for name in names]
    if wanted.sources is not None:
        columns.append(ledgers.c.footer)
    statement = (
        sa.select(*columns)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= start.ledger)
        .where(sa.or_(ledgers.c.state == "lost", sa.and_(sa.true(), *wanted.conditions(ledgers))))
        .order_by(ledgers.c.ledger)
    )
    pieces: list[_Piece | None] = []
    with storage.backend.snapshot() as connection:

        def plan_entries(ledger: tuple[int, int]) -> list[_Piece]:
            found, gaps = _entries(storage, connection, ledger, (start, end), wanted)
            for gap in gaps:
                damage.meet(gap.error, gap.messages)
            return found

        topic = storage.row(connection)
        head = Counter.of_row(topic).position
        end = head if stop is None else min(stop, head)
        for gap in missing_ledgers(storage, connection, start, end, topic):
            damage.meet(gap.error, gap.messages)
        for row in connection.execute(statement.where(ledgers.c.ledger <= end.ledger)).mappings().all():
            if row["state"] == "lost":
                pieces.append(None)  # no slice goes across it: the file that it shared may hold it still
            elif row["state"] == "sealed":
                pieces += _row_groups(storage, row, wanted, damage)
            else:
                pieces += plan_entries((row["ledger"], row["entries"]))
        if end.ledger == head.ledger:
            pieces += plan_entries((head.ledger, head.entry))
    return list(_joined(storage, pieces, start, end, max_messages))


def read_slice(
    part: Slice, columns: Sequence[str] | None = None, *, encoded: bool = False, damage: Damage | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a slice, in record batches of `waterclock.arrow.POSITIONED_SCHEMA` or the columns wanted.

    Parameters
    ----------
    encoded
        Give sources and streams as Arrow's dictionaries: the files hold them so, which is faster.
    damage
        Decides about what cannot be read; None: that is an error.

    Raises
    ------
    DamagedError
        Where something is not what was written, or is missing; it names the ledger.
    LostFileError
        Where the ledger's file is gone.
    UnavailableError
        Where it cannot be reached now.
    """
    wanted = check_columns(columns)
    for chunk in _chunks(part, wanted, damage or Damage(part.topic), encoded=encoded):
        yield from positioned(chunk, wanted, encoded=encoded)


def _chunks(part: Slice, columns: Sequence[str], damage: Damage, *, encoded: bool) -> Iterator[Chunk]:
    files = LedgerFiles(part.ledgers)
    storage = Storage(part.topic_id, part.topic, _backend(part.url), files)
    done = 0
    if part.path is not None:
        try:
            file = _file_of(part, storage, part.path, encoded=encoded)
            for number in range(*part.groups):
                yield from _of_row_group(part, file, number, columns, damage)
                done += 1
        except DamagedError as error:
            damage.meet(located(error, part.topic, ledger=part.start.ledger), part.messages)
            return
        except LostFileError as error:
            if path_now(storage, part.start.ledger) in (None, part.path):
                damage.meet(error, sum(messages for _, messages in part.pieces[done:]))
                return
        else:
            return
    # It was not sealed when the slice was cut, or compaction has moved it since.
    start = max(part.start, part.pieces[done][0]) if part.pieces else part.start
    yield from read_chunks(storage, start, part.stop, columns, damage)


def _file_of(part: Slice, storage: Storage, path: str, *, encoded: bool) -> SealedFile:
    checksums = joined([FileChecksums.from_bytes(data, f"ledgers of {path}") for data in part.checksums])
    expected, chunks = (None, None) if checksums is None else (checksums.footer, checksums.chunks)
    footer = parsed_footer(storage.files, path, part.size, None, expected, partial(footer_in_catalogue, storage, path))
    return SealedFile(storage.files, path, part.size, footer, chunks, encoded=encoded)


def _of_row_group(
    part: Slice, file: SealedFile, number: int, columns: Sequence[str], damage: Damage
) -> Iterator[Chunk]:
    shared = ["ledger"] if "ledger" in file.columns else []
    try:
        table = file.read(number, {*columns, *shared, "entry", "index"})
    except DamagedError as error:
        place, messages = part.pieces[number - part.groups[0]]
        damage.meet(located(error, part.topic, ledger=place.ledger, entry=place.entry), messages)
        return
    if not shared:
        yield from cut(Chunk(part.start.ledger, 0, table), part.start, part.stop)
    elif (rows := _between(table, part.start, part.stop)).num_rows:
        yield Chunk(rows["ledger"][0].as_py(), 0, rows)


def _between(table: pa.Table, start: Position, stop: Position) -> pa.Table:
    ledger, entry, index = (table[name].to_numpy() for name in ("ledger", "entry", "index"))

    def row(position: Position) -> int:
        first, last = np.searchsorted(ledger, [position.ledger, position.ledger + 1])
        return int(first) + row_of(entry[first:last], index[first:last], position[1:])

    return table.slice(row(start), row(stop) - row(start))


@lru_cache(maxsize=4)
def _backend(url: str) -> Backend:
    # A Spark worker reads many slices in one process, and opening a database costs more than reading a small one.
    return Backend(url)


class _Piece(NamedTuple):
    """An entry or a row group: where it begins and ends, how many messages it holds, its number, and its file.

    Of a file, ``size`` is its length in bytes, and ``checksums`` are what the catalogue keeps of them for the ledger.
    """

    start: Position
    stop: Position
    messages: int
    number: int
    path: str | None = None
    size: int = 0
    checksums: bytes | None = None


def _entries(
    storage: Storage,
    connection: sa.Connection,
    ledger: tuple[int, int],
    limits: tuple[Position, Position],
    wanted: Wanted,
) -> tuple[list[_Piece], list[Gap]]:
    """Give the entries that are wanted of a ledger that has had so many, and what is missing between the limits.

    What is missing lies in no slice, so nobody would come across it later.
    """
    number, count = ledger
    chosen = sa.and_(KEPT, *wanted.conditions(entries)).label("chosen")
    statement = (
        sa.select(entries.c.entry, entries.c.messages, chosen)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == number)
        .order_by(entries.c.entry)
    )
    rows = connection.execute(statement).all()
    start, stop = limits
    pieces = [
        _Piece(Position(number, row.entry, 0), Position(number, row.entry + 1, 0), row.messages, row.entry)
        for row in rows
        if row.chosen
    ]
    gaps: list[Gap] = []
    for before, behind in pairwise([-1, *(row.entry for row in rows), count]):
        first = Position(number, before + 1, 0)
        if behind > before + 1 and first < stop and Position(number, behind, 0) > start:
            gaps += look_in(storage, connection, max(first, start), min(stop, Position(number, behind, 0)), None).gaps
    return pieces, gaps


def _row_groups(storage: Storage, row: sa.RowMapping, wanted: Wanted, damage: Damage) -> list[_Piece]:
    """Give the row groups that are wanted of a sealed ledger; none where it is damaged, and is passed over."""
    try:
        known, checksums = checked_row_groups(row)
        groups, by_source = _groups_of(storage, row, known, checksums, wanted)
    except DamagedError as error:
        damage.meet(located(error, storage.name, ledger=row["ledger"]), row["messages"])
        return []
    except LostFileError as error:
        damage.meet(error, row["messages"])
        return []
    ledger = row["ledger"]
    starts = [Position(ledger, group.entry, group.index) for group in groups]
    stops = [*starts[1:], Position(ledger + 1, 0, 0)]
    numbers = [number if group.number is None else group.number for number, group in enumerate(groups)]
    return [
        _Piece(starts[i], stops[i], group.messages, numbers[i], row["path"], row["file_bytes"], row["checksums"])
        for i, group in enumerate(groups)
        if (by_source is None or by_source[numbers[i]]) and wanted.meets(group.bounds)
    ]


def _groups_of(
    storage: Storage,
    row: sa.RowMapping,
    known: list[RowGroup] | None,
    checksums: FileChecksums | None,
    wanted: Wanted,
) -> tuple[list[RowGroup], list[bool] | None]:
    """Give a ledger's row groups, and which of the file's may hold a wanted source; None: each may."""
    by_source = wanted.sources is not None and checksums is not None  # without checksums, nothing guards statistics
    if known is not None and not by_source:
        return known, None
    path, size = row["path"], row["file_bytes"]
    shared = ledgers_share_a_file(known or ())
    copy, fallback = None if shared else row.get("footer"), partial(footer_in_catalogue, storage, path)
    expected, chunks = (None, None) if checksums is None else (checksums.footer, checksums.chunks)
    footer = parsed_footer(storage.files, path, size, copy, expected, fallback)
    groups = measured_groups(SealedFile(storage.files, path, size, footer, chunks), row) if known is None else known
    return groups, wanted.row_groups(footer) if by_source else None


def _joined(
    storage: Storage, pieces: Iterable[_Piece | None], start: Position, stop: Position, max_messages: int
) -> Iterator[Slice]:
    """Join pieces of one ledger or of one file that follow one another into slices; where there is None, one ends."""
    run: list[_Piece] = []
    messages = 0
    for piece in pieces:
        if piece is not None and (piece.start >= stop or piece.stop <= start):
            continue
        if run and (piece is None or not _goes_on(run[-1], piece, messages + piece.messages <= max_messages)):
            yield _slice(storage, run, start, stop)
            run, messages = [], 0
        if piece is not None:
            run.append(piece)
            messages += piece.messages
    if run:
        yield _slice(storage, run, start, stop)


def _goes_on(last: _Piece, piece: _Piece, fits: bool) -> bool:
    if piece.path is None:
        return fits and last.stop == piece.start and last.start.ledger == piece.start.ledger
    # Two slices of one row group would both read it, so it is not cut between the ledgers that share it.
    return last.path == piece.path and (last.number == piece.number or (fits and last.stop == piece.start))


def _slice(storage: Storage, run: Sequence[_Piece], start: Position, stop: Position) -> Slice:
    path = run[0].path
    numbers = [piece.number for piece in run]
    pieces = tuple(
        (run[numbers.index(number)].start, sum(piece.messages for piece in run if piece.number == number))
        for number in dict.fromkeys(numbers)
    )
    return Slice(
        url=storage.backend.url.render_as_string(hide_password=False),
        topic_id=storage.topic_id,
        topic=storage.name,
        ledgers=storage.files.root,
        start=max(start, run[0].start),
        stop=min(stop, run[-1].stop),
        messages=sum(piece.messages for piece in run),
        path=path,
        groups=(numbers[0], numbers[-1] + 1) if path else (0, 0),
        size=run[0].size,
        pieces=pieces if path else (),
        checksums=tuple(dict.fromkeys(piece.checksums for piece in run if piece.checksums is not None)),
    )
