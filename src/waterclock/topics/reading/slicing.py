"""Slices: pieces of a topic that other processes can read independently, such as Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from waterclock._support.urls import shown
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import Damage, located
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import FileChecksums, joined
from waterclock.topics.format.row_groups import row_of
from waterclock.topics.reading.footers import footer_in_catalogue, parsed_footer
from waterclock.topics.reading.reading import Chunk, check_columns, cut, path_now, positioned, read_chunks
from waterclock.topics.reading.sealed_ledger import checked_row_groups
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.store.sealed_file import SealedFile


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of one ledger, or of several that share a file. Can be pickled; holds no data and no open resource.

    Attributes
    ----------
    url, topic_id, topic
        The database, with its password, and the topic. Used for a piece that was not sealed when it was cut.
    files
        The store of the ledger files.
    start, stop
        First position, and the one to stop before.
    messages
        How many messages there are at most; exact except in the first and the last row group of a range.
    path
        Name of the sealed ledgers' file in the store; None: its entries are rows of the database.
    groups
        Row groups of the file to read: the first, and the one to stop before; None: all of them.
    size
        The file's length, bytes.
    checksums
        What the catalogue keeps of the file's checksums (`FileChecksums`), for each ledger.
    """

    url: str = field(repr=False)
    topic_id: int
    topic: str
    files: LedgerFiles
    start: Position
    stop: Position
    messages: int
    path: str | None = None
    groups: tuple[int, int] | None = (0, 0)
    size: int = 0
    checksums: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        # Spark shows this in its pages and logs.
        where = "" if self.path is None else f" in {self.files.name(self.path)}, row groups {self.groups or 'all'}"
        return f"<Slice of {self.topic!r} of {shown(self.url)}, {self.start} to {self.stop}{where}>"


def read_slice(
    part: Slice, columns: Sequence[str] | None = None, *, encoded: bool = False, damage: Damage | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a slice, in record batches of `waterclock.arrow.POSITIONED_SCHEMA` or the columns wanted.

    Parameters
    ----------
    encoded
        Return sources and streams as Arrow dictionaries, as stored in the files, which is faster.
    damage
        Decides about what cannot be read; None: that is an error.

    Raises
    ------
    DamagedError
        If something is not what was written, or is missing; it names the ledger.
    LostFileError
        If the ledger's file is gone.
    UnavailableError
        If it cannot be reached now.
    """
    wanted = check_columns(columns)
    for chunk in _chunks(part, wanted, damage or Damage(part.topic), encoded=encoded):
        yield from positioned(chunk, wanted, encoded=encoded)


def _chunks(part: Slice, columns: Sequence[str], damage: Damage, *, encoded: bool) -> Iterator[Chunk]:
    storage = Storage(part.topic_id, part.topic, _backend(part.url), part.files)
    start, left = part.start, part.messages
    if part.path is not None:
        try:
            file = _file_of(part, storage, part.path, encoded=encoded)
            for number in range(*part.groups) if part.groups else range(file.row_groups):
                for chunk in _of_row_group(part, storage, file, number, columns, damage):
                    yield chunk
                    start = _behind(chunk)
                    left -= chunk.table.num_rows
        except DamagedError as error:
            damage.meet(located(error, part.topic, ledger=part.start.ledger), part.messages)
            return
        except LostFileError as error:
            if path_now(storage, part.start.ledger) in (None, part.path):
                damage.meet(error, max(left, 0))
                return
        else:
            return
    # It was not sealed when the slice was cut, or compaction has moved it since.
    yield from read_chunks(storage, start, part.stop, columns, damage)


def _file_of(part: Slice, storage: Storage, path: str, *, encoded: bool) -> SealedFile:
    checksums = joined([FileChecksums.from_bytes(data, f"ledgers of {path}") for data in part.checksums])
    copy = partial(footer_in_catalogue, storage, path)
    footer = parsed_footer(storage.files, path, None, checksums.footer, copy)
    return SealedFile(storage.files, path, part.size, footer, checksums.chunks, encoded=encoded)


def _of_row_group(
    part: Slice, storage: Storage, file: SealedFile, number: int, columns: Sequence[str], damage: Damage
) -> Iterator[Chunk]:
    shared = ["ledger"] if "ledger" in file.columns else []
    try:
        table = file.read(number, {*columns, *shared, "entry", "index"})
    except DamagedError as error:
        place, messages = _wanted_of(storage, part, number)
        damage.meet(located(error, part.topic, ledger=place.ledger, entry=place.entry), messages)
        return
    if not shared:
        yield from cut(Chunk(part.start.ledger, 0, table), part.start, part.stop)
    elif (rows := _between(table, part.start, part.stop)).num_rows:
        yield Chunk(rows["ledger"][0].as_py(), 0, rows)


def _wanted_of(storage: Storage, part: Slice, number: int) -> tuple[Position, int]:
    """Say where the first message of a row group that is in a slice stands, and how many messages these are."""
    statement = (
        sa.select(ledgers)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.path == part.path)
        .where(ledgers.c.ledger.between(part.start.ledger, part.stop.ledger))
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        rows = connection.execute(statement).mappings().all()
    found: list[tuple[Position, int]] = []
    for row in rows:
        groups, _ = checked_row_groups(row)
        for at, group in enumerate(groups):
            place = Position(row["ledger"], group.entry, group.index)
            if number == (at if group.number is None else group.number) and place < part.stop:
                found.append((place, group.messages))
    if not found:
        return part.start, part.messages  # deleted since: an upper limit
    return found[0][0], sum(messages for _, messages in found)


def _behind(chunk: Chunk) -> Position:
    table = chunk.table
    ledger = table.column("ledger")[-1].as_py() if "ledger" in table.schema.names else chunk.ledger
    return Position(ledger, table.column("entry")[-1].as_py(), table.column("index")[-1].as_py() + 1)


def _between(table: pa.Table, start: Position, stop: Position) -> pa.Table:
    ledger, entry, index = (table[name].to_numpy() for name in ("ledger", "entry", "index"))

    def row(position: Position) -> int:
        first, last = np.searchsorted(ledger, [position.ledger, position.ledger + 1])
        return int(first) + row_of(entry[first:last], index[first:last], position[1:])

    return table.slice(row(start), row(stop) - row(start))


@lru_cache(maxsize=4)
def _backend(url: str) -> Backend:
    # A Spark worker reads many slices in one process, and opening a database costs more than reading a small slice.
    return Backend(url)
