"""Slices: a range of a topic cut into pieces that other processes can read, each on its own, for Spark and its like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.pruning import ALL, Wanted
from waterclock.topics.reading import Chunk, check_columns, cut, positioned, read_chunks
from waterclock.topics.row_groups import row_groups_from_json
from waterclock.topics.sealed_file import SealedFile, read_footer
from waterclock.topics.storage import Storage


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of one ledger. Can be pickled; holds no data and no open thing.

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
        Name of the sealed ledger's file below ``ledgers``; None: its entries are rows of the database.
    groups
        Row groups of the file to read: the first, and the one to stop before.
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


def plan_slices(
    storage: Storage, start: Position, stop: Position | None, max_messages: int, wanted: Wanted = ALL
) -> list[Slice]:
    """Cut what is wanted of a range of a topic into slices of about ``max_messages``, as one snapshot shows it.

    A slice that was not sealed when it was cut can still be read when it has been sealed since. A ledger that was
    deleted since can be read until its grace time has ended.
    """
    columns = [ledgers.c.ledger, ledgers.c.state, ledgers.c.path, ledgers.c.row_groups]
    if wanted.sources is not None:
        columns.append(ledgers.c.footer)
    statement = (
        sa.select(*columns)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= start.ledger, *wanted.conditions(ledgers))
        .order_by(ledgers.c.ledger)
    )
    slices: list[Slice] = []
    with storage.backend.snapshot() as connection:
        head = Counter.of_row(storage.row(connection)).position
        end = head if stop is None else min(stop, head)
        for row in connection.execute(statement.where(ledgers.c.ledger <= end.ledger)).all():
            sealed = row.state == "sealed"
            pieces = _row_groups(row, wanted) if sealed else _entries(storage, connection, row.ledger, wanted)
            slices += _joined(storage, pieces, start, end, max_messages, row.path)
        if end.ledger == head.ledger:
            pieces = _entries(storage, connection, head.ledger, wanted)
            slices += _joined(storage, pieces, start, end, max_messages, None)
    return slices


def read_slice(part: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read a slice, in record batches of `waterclock.arrow.POSITIONED_SCHEMA` or the columns wanted.

    Raises
    ------
    UnavailableError
        Where the ledger's file cannot be read; the text names it.
    """
    wanted = check_columns(columns)
    for chunk in _chunks(part, wanted):
        yield from positioned(chunk, wanted)


def _chunks(part: Slice, columns: Sequence[str]) -> Iterator[Chunk]:
    files = LedgerFiles(part.ledgers)
    if part.path is None:
        storage = Storage(part.topic_id, part.topic, _backend(part.url), files)
        yield from read_chunks(storage, part.start, part.stop, columns)
        return
    file = SealedFile(files, part.path, files.size(part.path), read_footer(files, part.path))
    for group in range(*part.groups):
        table = file.read(group, {*columns, "entry", "index"})
        yield from cut(Chunk(part.start.ledger, 0, table), part.start, part.stop)


@lru_cache(maxsize=4)
def _backend(url: str) -> Backend:
    # A Spark worker reads many slices in one process, and opening a database costs more than reading a small one.
    return Backend(url)


class _Piece(NamedTuple):
    """An entry or a row group: where it begins and ends, how many messages it holds, and its number."""

    start: Position
    stop: Position
    messages: int
    number: int


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


def _row_groups(row: sa.Row[Any], wanted: Wanted) -> list[_Piece]:
    groups = row_groups_from_json(row.row_groups)
    starts = [Position(row.ledger, group.entry, group.index) for group in groups]
    stops = [*starts[1:], Position(row.ledger + 1, 0, 0)]
    by_source = [True] * len(groups)
    if wanted.sources is not None and row.footer is not None:
        by_source = wanted.row_groups(row.footer)
    return [
        _Piece(starts[number], stops[number], group.messages, number)
        for number, group in enumerate(groups)
        if by_source[number] and wanted.meets(group.bounds)
    ]


def _joined(
    storage: Storage, pieces: Iterable[_Piece], start: Position, stop: Position, max_messages: int, path: str | None
) -> Iterator[Slice]:
    """Join pieces of one ledger that follow one another into slices."""
    run: list[_Piece] = []
    messages = 0
    for piece in (piece for piece in pieces if piece.start < stop and piece.stop > start):
        if run and (messages + piece.messages > max_messages or run[-1].stop != piece.start):
            yield _slice(storage, run, start, stop, path)
            run, messages = [], 0
        run.append(piece)
        messages += piece.messages
    if run:
        yield _slice(storage, run, start, stop, path)


def _slice(storage: Storage, run: Sequence[_Piece], start: Position, stop: Position, path: str | None) -> Slice:
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
