"""Slices: pieces of a topic that other processes can read, each on its own, for Spark and its like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from waterclock.database.backend import Backend
from waterclock.message import Position
from waterclock.topics.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.reading import Chunk, check_columns, cut, path_now, positioned, read_chunks
from waterclock.topics.row_groups import row_of
from waterclock.topics.sealed_file import SealedFile, read_footer
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
        Row groups of the file to read: the first, and the one to stop before; None: all of them.
    """

    url: str
    topic_id: int
    topic: str
    ledgers: str
    start: Position
    stop: Position
    messages: int
    path: str | None = None
    groups: tuple[int, int] | None = (0, 0)


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
    for group in range(*part.groups) if part.groups else range(file.row_groups):
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
