"""Slices: a range of a topic cut into pieces that other processes can read, each on its own, for Spark and its like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.pruning import ALL, Wanted
from waterclock.topics.reading import Chunk, check_columns, cut, path_now, positioned, read_chunks
from waterclock.topics.row_groups import row_groups_from_json, row_of
from waterclock.topics.sealed_file import SealedFile, parsed_footer, read_footer
from waterclock.topics.storage import Storage


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
    """

    url: str = field(repr=False)
    topic_id: int
    topic: str
    ledgers: str
    start: Position
    stop: Position
    messages: int
    path: str | None = None
    groups: tuple[int, int] = (0, 0)


def plan_slices(
    storage: Storage, start: Position, stop: Position | None, max_messages: int, wanted: Wanted = ALL
) -> list[Slice]:
    """Cut what is wanted of a range of a topic into slices of about ``max_messages``, as one snapshot shows it.

    A slice that was not sealed when it was cut can still be read when it has been sealed since, and one that was
    compacted since from where it is now. A ledger that was deleted since can be read until its grace time has ended.
    """
    columns = [ledgers.c.ledger, ledgers.c.state, ledgers.c.path, ledgers.c.row_groups]
    if wanted.sources is not None:
        columns.append(ledgers.c.footer)
    statement = (
        sa.select(*columns)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= start.ledger, *wanted.conditions(ledgers))
        .order_by(ledgers.c.ledger)
    )
    pieces: list[_Piece] = []
    with storage.backend.snapshot() as connection:
        head = Counter.of_row(storage.row(connection)).position
        end = head if stop is None else min(stop, head)
        for row in connection.execute(statement.where(ledgers.c.ledger <= end.ledger)).all():
            sealed = row.state == "sealed"
            pieces += _row_groups(storage, row, wanted) if sealed else _entries(storage, connection, row.ledger, wanted)
        if end.ledger == head.ledger:
            pieces += _entries(storage, connection, head.ledger, wanted)
    return list(_joined(storage, pieces, start, end, max_messages))


def read_slice(part: Slice, columns: Sequence[str] | None = None, *, encoded: bool = False) -> Iterator[pa.RecordBatch]:
    """Read a slice, in record batches of `waterclock.arrow.POSITIONED_SCHEMA` or the columns wanted.

    Parameters
    ----------
    encoded
        Give sources and streams as Arrow's dictionaries: the files hold them so, which is faster.

    Raises
    ------
    UnavailableError
        Where the ledger's file cannot be read; the text names it.
    """
    wanted = check_columns(columns)
    for chunk in _chunks(part, wanted, encoded=encoded):
        yield from positioned(chunk, wanted, encoded=encoded)


def _chunks(part: Slice, columns: Sequence[str], *, encoded: bool) -> Iterator[Chunk]:
    files = LedgerFiles(part.ledgers)
    start = part.start
    if part.path is not None:
        try:
            for chunk in _of_file(part, files, part.path, columns, encoded=encoded):
                yield chunk
                start = _behind(chunk)
        except LostFileError:
            if path_now(_storage(part, files), start.ledger) in (None, part.path):
                raise
        else:
            return
    # It was not sealed when the slice was cut, or compaction has moved it since.
    yield from read_chunks(_storage(part, files), start, part.stop, columns)


def _of_file(part: Slice, files: LedgerFiles, path: str, columns: Sequence[str], *, encoded: bool) -> Iterator[Chunk]:
    file = SealedFile(files, path, files.size(path), read_footer(files, path), encoded=encoded)
    shared = ["ledger"] if "ledger" in file.columns else []
    for group in range(*part.groups):
        table = file.read(group, {*columns, *shared, "entry", "index"})
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


def _behind(chunk: Chunk) -> Position:
    table = chunk.table
    ledger = table.column("ledger")[-1].as_py() if "ledger" in table.schema.names else chunk.ledger
    return Position(ledger, table.column("entry")[-1].as_py(), table.column("index")[-1].as_py() + 1)


def _storage(part: Slice, files: LedgerFiles) -> Storage:
    return Storage(part.topic_id, part.topic, _backend(part.url), files)


@lru_cache(maxsize=4)
def _backend(url: str) -> Backend:
    # A Spark worker reads many slices in one process, and opening a database costs more than reading a small one.
    return Backend(url)


class _Piece(NamedTuple):
    """An entry or a row group: where it begins and ends, how many messages it holds, its number, and its file."""

    start: Position
    stop: Position
    messages: int
    number: int
    path: str | None = None


def _entries(storage: Storage, connection: sa.Connection, ledger: int, wanted: Wanted) -> list[_Piece]:
    statement = (
        sa.select(entries.c.entry, entries.c.messages)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger, *wanted.conditions(entries))
        .order_by(entries.c.entry)
    )
    return [
        _Piece(Position(ledger, row.entry, 0), Position(ledger, row.entry + 1, 0), row.messages, row.entry)
        for row in connection.execute(statement)
    ]


def _row_groups(storage: Storage, row: sa.Row[Any], wanted: Wanted) -> list[_Piece]:
    groups = row_groups_from_json(row.row_groups)
    starts = [Position(row.ledger, group.entry, group.index) for group in groups]
    stops = [*starts[1:], Position(row.ledger + 1, 0, 0)]
    numbers = [number if group.number is None else group.number for number, group in enumerate(groups)]
    by_source = (
        None if wanted.sources is None else wanted.row_groups(parsed_footer(storage.files, row.path, row.footer))
    )
    return [
        _Piece(starts[i], stops[i], group.messages, numbers[i], row.path)
        for i, group in enumerate(groups)
        if (by_source is None or by_source[numbers[i]]) and wanted.meets(group.bounds)
    ]


def _joined(
    storage: Storage, pieces: Iterable[_Piece], start: Position, stop: Position, max_messages: int
) -> Iterator[Slice]:
    """Join pieces of one ledger or of one file that follow one another into slices."""
    run: list[_Piece] = []
    messages = 0
    for piece in (piece for piece in pieces if piece.start < stop and piece.stop > start):
        if run and not _goes_on(run[-1], piece, messages + piece.messages <= max_messages):
            yield _slice(storage, run, start, stop)
            run, messages = [], 0
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
    return Slice(
        url=storage.backend.url.render_as_string(hide_password=False),
        topic_id=storage.topic_id,
        topic=storage.name,
        ledgers=storage.files.root,
        start=max(start, run[0].start),
        stop=min(stop, run[-1].stop),
        messages=sum(piece.messages for piece in run),
        path=path,
        groups=(run[0].number, run[-1].number + 1) if path else (0, 0),
    )
