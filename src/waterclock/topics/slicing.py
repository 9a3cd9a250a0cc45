"""Slices: a range of a topic cut into pieces that other processes can read, each on its own, for Spark and its like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.ledger_files import LedgerFiles
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


def plan_slices(storage: Storage, start: Position, stop: Position | None, max_messages: int) -> list[Slice]:
    """Cut a range of a topic into slices of about ``max_messages``, as one snapshot shows it.

    A slice that was not sealed when it was cut can still be read when it has been sealed since. A ledger that was
    deleted since can be read until its grace time has ended.
    """
    columns = [ledgers.c.ledger, ledgers.c.state, ledgers.c.path, ledgers.c.row_groups]
    statement = sa.select(*columns).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= start.ledger)
    slices: list[Slice] = []
    with storage.backend.snapshot() as connection:
        head = Counter.of_row(storage.row(connection)).position
        end = head if stop is None else min(stop, head)
        rows = connection.execute(statement.where(ledgers.c.ledger <= end.ledger).order_by(ledgers.c.ledger)).all()
        for row in rows:
            if row.state == "sealed":
                sizes = [
                    (Position(row.ledger, g.entry, g.index), g.messages) for g in row_groups_from_json(row.row_groups)
                ]
            else:
                sizes = _entry_sizes(storage, connection, row.ledger)
            limits = max(start, Position(row.ledger, 0, 0)), min(end, Position(row.ledger + 1, 0, 0))
            slices += _pieces(storage, sizes, *limits, max_messages, row.path)
        if end.ledger == head.ledger:
            sizes = _entry_sizes(storage, connection, head.ledger)
            slices += _pieces(storage, sizes, max(start, Position(head.ledger, 0, 0)), end, max_messages, None)
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


def _entry_sizes(storage: Storage, connection: sa.Connection, ledger: int) -> list[tuple[Position, int]]:
    statement = (
        sa.select(entries.c.entry, entries.c.messages)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
        .order_by(entries.c.entry)
    )
    return [(Position(ledger, row.entry, 0), row.messages) for row in connection.execute(statement)]


def _pieces(
    storage: Storage,
    sizes: Sequence[tuple[Position, int]],
    start: Position,
    stop: Position,
    max_messages: int,
    path: str | None,
) -> Iterable[Slice]:
    """Group the row groups or entries of one ledger, given as (first position, messages), into slices."""
    ends = [*(position for position, _ in sizes[1:]), Position(start.ledger + 1, 0, 0)]
    inside = [i for i, (position, _) in enumerate(sizes) if position < stop and ends[i] > start]
    while inside:
        count = messages = 0
        for i in inside:
            if count and messages + sizes[i][1] > max_messages:
                break
            messages += sizes[i][1]
            count += 1
        first, last = inside[0], inside[count - 1]
        inside = inside[count:]
        yield Slice(
            url=storage.backend.url.render_as_string(hide_password=False),
            topic_id=storage.topic_id,
            topic=storage.name,
            ledgers=storage.files.root,
            start=max(start, sizes[first][0]),
            stop=min(stop, ends[last]),
            messages=messages,
            path=path,
            groups=(first, last + 1) if path else (0, 0),
        )
