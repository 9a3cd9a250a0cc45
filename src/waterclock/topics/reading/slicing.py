"""Reads slices: parts of a topic that other processes, such as Spark's tasks, can read independently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple, Self

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
from waterclock.topics.reading.footers import checked_footer, footer_in_catalogue
from waterclock.topics.reading.reading import Chunk, check_columns, cut, path_now, positioned, read_chunks
from waterclock.topics.reading.sealed_ledger import checked_row_groups
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.store.sealed_file import SealedFile


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """Everything that another process needs to open a topic. Can be pickled; holds no open resource."""

    url: str = field(repr=False)  # the database, with its password
    # The topic's key and name.
    topic_id: int
    topic: str
    files: LedgerFiles  # the store of its ledger files

    @classmethod
    def of(cls, storage: Storage) -> Self:
        """Return the address of an open topic."""
        url = storage.backend.url.render_as_string(hide_password=False)
        return cls(url, storage.topic_id, storage.name, storage.files)

    def storage(self) -> Storage:
        """Open the topic; a process keeps the database's options and catalogue version, not its connections."""
        return Storage(self.topic_id, self.topic, _backend(self.url), self.files)


class Slice(NamedTuple):
    """A piece of one ledger, or of several that share a file. Can be pickled; holds no data and no open resource."""

    # The topic. Its database is opened only for a piece that was unsealed when it was cut, and for damaged parts.
    address: TopicAddress
    # First position, and the one to stop before.
    start: Position
    stop: Position
    messages: int  # maximum number of messages; exact unless it begins or ends inside a row group
    # Name of the sealed ledgers' file in the store; None: its entries are rows of the database.
    path: str | None = None
    # Row groups of the file to read: the first, and the one to stop before; None: all of them.
    groups: tuple[int, int] | None = (0, 0)
    size: int = 0  # the file's length, bytes
    checksums: tuple[bytes, ...] = ()  # the file's checksums from the catalogue (`FileChecksums`), for each ledger

    def __repr__(self) -> str:
        # Spark shows this in its pages and logs.
        topic, files = self.address.topic, self.address.files
        where = "" if self.path is None else f" in {files.name(self.path)}, row groups {self.groups or 'all'}"
        return f"<Slice of {topic!r} of {shown(self.address.url)}, {self.start} to {self.stop}{where}>"


class SliceRun(NamedTuple):
    """Consecutive whole sealed ledgers, each with its own file, for a plan with very many.

    They are plain tuples, because a plan of 10⁶ objects takes twice as long to build, and three times as long to
    pickle.
    """

    address: TopicAddress
    first: int  # number of the first ledger
    ledgers: list[tuple[int, str, int, bytes | None]]
    """For each: its messages, and the path, size and checksums of a `Slice`."""

    def slices(self) -> Iterator[Slice]:
        """Return a slice for each ledger."""
        for ledger, (messages, path, size, checksums) in enumerate(self.ledgers, self.first):
            start, stop = Position(ledger, 0, 0), Position(ledger + 1, 0, 0)
            yield Slice(
                self.address, start, stop, messages, path, None, size, () if checksums is None else (checksums,)
            )


def read_slice(
    part: Slice, columns: Sequence[str] | None = None, *, encoded: bool = False, damage: Damage | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a slice, in record batches of `waterclock.arrow.POSITIONED_SCHEMA` or the columns wanted.

    Raises `DamagedError` if something differs from its written form, or is missing; it names the ledger. Raises
    `LostFileError` if the ledger's file is gone. Raises `UnavailableError` if it cannot be reached now.

    Parameters
    ----------
    encoded
        Return sources and streams as Arrow dictionaries, as the files store them, which is faster.
    damage
        The policy for unreadable parts; None: they are an error.
    """
    wanted = check_columns(columns)
    try:
        for chunk in _chunks(part, wanted, damage or Damage(part.address.topic), encoded=encoded):
            yield from positioned(chunk, wanted, encoded=encoded)
    finally:
        if part.path is None:
            # Otherwise each worker of a cluster would keep a connection after it has read an unsealed slice.
            _backend(part.address.url).close()


def _chunks(part: Slice, columns: Sequence[str], damage: Damage, *, encoded: bool) -> Iterator[Chunk]:
    start, left = part.start, part.messages
    if part.path is not None:
        try:
            file = _file_of(part, part.path, encoded=encoded)
            for number in range(*part.groups) if part.groups else range(file.row_groups):
                for chunk in _of_row_group(part, file, number, columns, damage):
                    yield chunk
                    start = _behind(chunk)
                    left -= chunk.table.num_rows
        except DamagedError as error:
            damage.meet(located(error, part.address.topic, ledger=part.start.ledger), part.messages)
            return
        except LostFileError as error:
            if path_now(part.address.storage(), part.start.ledger) in (None, part.path):
                damage.meet(error, max(left, 0))
                return
        else:
            return
    # It was not sealed when the slice was cut, or compaction has moved it since.
    yield from read_chunks(part.address.storage(), start, part.stop, columns, damage)


def _file_of(part: Slice, path: str, *, encoded: bool) -> SealedFile:
    files = part.address.files
    checksums = joined([FileChecksums.from_bytes(data, f"ledgers of {path}") for data in part.checksums])
    footer = checked_footer(files, path, None, checksums.footer, partial(_footer_in_catalogue, part, path))
    return SealedFile(files, path, part.size, footer, checksums.chunks, encoded=encoded)


def _footer_in_catalogue(part: Slice, path: str) -> bytes | None:
    return footer_in_catalogue(part.address.storage(), path)


def _of_row_group(
    part: Slice, file: SealedFile, number: int, columns: Sequence[str], damage: Damage
) -> Iterator[Chunk]:
    shared = ["ledger"] if "ledger" in file.columns else []
    try:
        table = file.read(number, {*columns, *shared, "entry", "index"})
    except DamagedError as error:
        place, messages = _wanted_of(part, number)
        damage.meet(located(error, part.address.topic, ledger=place.ledger, entry=place.entry), messages)
        return
    if not shared:
        yield from cut(Chunk(part.start.ledger, 0, table), part.start, part.stop)
    elif (rows := _between(table, part.start, part.stop)).num_rows:
        yield Chunk(rows["ledger"][0].as_py(), 0, rows)


def _wanted_of(part: Slice, number: int) -> tuple[Position, int]:
    """Return the position of the first message of a row group that is in a slice, and how many such messages follow."""
    statement = (
        sa.select(ledgers)
        .where(ledgers.c.topic_id == part.address.topic_id, ledgers.c.path == part.path)
        .where(ledgers.c.ledger.between(part.start.ledger, part.stop.ledger))
        .order_by(ledgers.c.ledger)
    )
    with part.address.storage().backend.snapshot() as connection:
        rows = connection.execute(statement).mappings().all()
    found: list[tuple[Position, int]] = []
    for row in rows:
        groups, _ = checked_row_groups(row)
        for at, group in enumerate(groups):
            place = Position(row["ledger"], group.entry, group.index)
            if number == (at if group.number is None else group.number) and place < part.stop:
                found.append((place, group.messages))
    if not found:
        return part.start, part.messages  # deleted since: an upper bound
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
    # A Spark worker reads many slices in one process; reading the catalogue's version costs two round trips.
    return Backend(url)
