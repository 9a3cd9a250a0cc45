"""Reads a topic from one position to another, across ledgers, even while they are being sealed or deleted."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypedDict

import pyarrow as pa
import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.message import Position
from waterclock.time import Time
from waterclock.topics.catalogue.damage_policy import Damage, OnDamage, located
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import is_lost
from waterclock.topics.format.entries import decode_entries
from waterclock.topics.format.row_groups import RowGroup, row_of, starts_of
from waterclock.topics.model.names import LARGEST_INTEGER, check_integer
from waterclock.topics.reading.contiguity import EntryRow, look
from waterclock.topics.reading.pruning import ALL, ReadFilter
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.store.sealed_file import ENCODED


class Chunk(NamedTuple):
    """Some consecutive messages."""

    ledger: int  # their ledger; if the table has a column ``ledger``, the ledger of the first message
    first_ordinal: int  # number of the first of them in the topic
    table: pa.RecordBatch | pa.Table  # the requested columns, then entry and index


class ReadOptions(TypedDict, total=False):
    """The options of `Topic.read_arrow`."""

    since: Time | None
    until: Time | None
    by: str
    source: str | Collection[str] | None
    stream: str | Collection[str] | None
    limit: int | None
    columns: Sequence[str] | None
    on_damage: OnDamage


def read_chunks(
    storage: Storage,
    start: Position,
    stop: Position,
    columns: Collection[str],
    damage: Damage | None = None,
    wanted: ReadFilter = ALL,
) -> Iterator[Chunk]:
    """Read the remaining messages from ``start`` to before ``stop``, a bounded piece at a time.

    No transaction stays open between two pieces: each looks its ledger up again. Each piece must follow the one before:
    a missing ledger or entry that was not deleted on purpose is damage.

    Raises `DamagedError` if something differs from its written form, or is missing; it names the ledger. Raises
    `LostFileError` if the file of a ledger is gone. Raises `UnavailableError` if the file of a ledger cannot be reached
    now.

    Parameters
    ----------
    damage
        Decides about unreadable parts; None: they are an error.
    wanted
        Parts of files without a wanted source are skipped. The result may still hold other sources.
    """
    yield from _PieceReader(storage, columns, damage or Damage(storage.name), wanted).read(start, stop)


def positioned(chunk: Chunk, columns: Sequence[str], *, encoded: bool = False) -> Iterator[pa.RecordBatch]:
    """Convert a chunk to the wanted columns of `POSITIONED_SCHEMA`; ``encoded`` as in `SealedFile`."""
    schema = pa.schema([_encoded_field(name) if encoded else POSITIONED_SCHEMA.field(name) for name in columns])
    batches = chunk.table.to_batches() if isinstance(chunk.table, pa.Table) else [chunk.table]
    for batch in batches:
        given = batch.schema.names
        missing = "ledger" in columns and "ledger" not in given
        ledger = pa.repeat(pa.scalar(chunk.ledger, pa.int64()), batch.num_rows) if missing else None
        arrays = [ledger if ledger is not None and name == "ledger" else batch.column(name) for name in columns]
        if encoded:  # unsealed messages have plain texts
            arrays = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _encoded_field(name: str) -> pa.Field:
    field = POSITIONED_SCHEMA.field(name)
    return field.with_type(pa.dictionary(pa.int32(), field.type)) if name in ENCODED else field


def check_columns(columns: Sequence[str] | None) -> list[str]:
    """Check a choice of columns; None means all."""
    if columns is None:
        return list(POSITIONED_SCHEMA.names)
    if isinstance(columns, str) or not isinstance(columns, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"columns must be a list of names, got {quoted(columns)}")
    unknown = [name for name in columns if name not in POSITIONED_SCHEMA.names]
    if unknown or not columns:
        wrong = repr(unknown[0]) if unknown else "[]"
        raise InvalidArgumentError(f"columns must be chosen from {', '.join(POSITIONED_SCHEMA.names)}, got {wrong}")
    if len(set(columns)) < len(columns):  # a table with two columns of one name can hardly be used
        raise InvalidArgumentError(f"columns must not repeat a name, got {quoted(list(columns))}")
    return list(columns)


def check_limit(limit: int | None) -> int | None:
    """Check a number of messages; None means no limit."""
    return None if limit is None else check_integer(limit, "limit", least=1)


def check_position(position: Position, name: str) -> Position:
    """Check that something is a position."""
    if not isinstance(position, Position):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"{name} must be a Position, got {position!r}. Write Position(ledger, entry, index)")
    if not all(0 <= number <= LARGEST_INTEGER for number in position):
        raise InvalidArgumentError(f"the numbers in {name} must be from 0 to {LARGEST_INTEGER}, got {quoted(position)}")
    return position


class _PieceReader:
    """Reads piece after piece, and asks its `Damage` about unreadable ones."""

    def __init__(self, storage: Storage, columns: Collection[str], damage: Damage, wanted: ReadFilter) -> None:
        self._storage = storage
        self._columns = columns
        self._damage = damage
        self._wanted = wanted

    def read(self, start: Position, stop: Position) -> Iterator[Chunk]:
        position, ordinal = start, None
        while position < stop:
            part = look(self._storage, position, stop, ordinal)
            for gap in part.gaps:
                self._damage.meet(gap.error, gap.messages)
            if part.sealed is not None:
                yield from self._sealed(part.sealed, position, stop)
            for run in _runs(part.entries):
                for chunk in self._decoded(part.ledger, run):
                    yield from cut(chunk, position, stop)
            if part.following is None:
                return
            position, ordinal = part.following, part.ordinal

    def _decoded(self, ledger: int, rows: Sequence[EntryRow]) -> Iterator[Chunk]:
        """Decode entries that follow one another, as many as can be at once."""
        left = rows
        while left:
            try:
                chunk, count = _chunk(ledger, left, self._columns)
            except DamagedError as error:
                at = next(number for number, row in enumerate(left) if row.entry == error.entry)
                if at:
                    yield from self._decoded(ledger, left[:at])
                self._damage.meet(located(error, self._storage.name, ledger=ledger), left[at].messages)
                left = left[at + 1 :]
            else:
                yield chunk
                left = left[count:]

    def _sealed(self, row: sa.RowMapping, start: Position, stop: Position) -> Iterator[Chunk]:
        ledger = row["ledger"]
        position, left = start, row["messages"]
        try:
            file = SealedLedger(self._storage, row)
            numbers = starts_of(file.groups, row["first_ordinal"])
            holds = None if self._wanted.sources is None else self._wanted.row_groups(file.metadata)
            for number, group in enumerate(file.groups):
                following = file.groups[number + 1] if number + 1 < len(file.groups) else None
                if _place(ledger, group) >= stop:
                    return
                is_before = following is not None and _place(ledger, following) <= start
                if not is_before and (holds is None or holds[number if group.number is None else group.number]):
                    position = max(start, _place(ledger, group))
                    yield from self._row_group(file, number, numbers[number], start, stop)
                left -= group.messages
        except DamagedError as error:
            self._damage.meet(error, left)
        except LostFileError as error:
            path = path_now(self._storage, ledger)
            if path == row["path"]:
                self._damage.meet(error, left)
            elif path is not None:  # a compaction has moved it meanwhile
                yield from self.read(position, min(stop, Position(ledger + 1, 0, 0)))
            # Or retention has deleted it: continue after it.

    def _row_group(
        self, file: SealedLedger, number: int, ordinal: int, start: Position, stop: Position
    ) -> Iterator[Chunk]:
        try:
            table = file.read(number, {*self._columns, "entry", "index"})
        except DamagedError as error:
            self._damage.meet(error, file.groups[number].messages)
            return
        yield from cut(Chunk(file.number, ordinal, table), start, stop)


def _runs(rows: Iterable[EntryRow]) -> Iterator[Sequence[EntryRow]]:
    """Group adjacent entries; entries recorded as lost are left out."""
    for lost, run in groupby(rows, key=lambda row: is_lost(row.data)):
        if not lost:
            yield list(run)


def _chunk(ledger: int, rows: Sequence[EntryRow], columns: Collection[str]) -> tuple[Chunk, int]:
    batch, count = decode_entries(ledger, [(row.entry, row.data) for row in rows], columns)
    rows = rows[:count]
    if batch.num_rows != sum(row.messages for row in rows):
        found = Counting(batch.column("entry").to_pylist())
        entry, said = next((row.entry, row.messages) for row in rows if found[row.entry] != row.messages)
        raise DamagedError(
            f"entry {entry} of ledger {ledger} is corrupt: it holds {found[entry]} messages instead of {said}",
            ledger=ledger,
            entry=entry,
        )
    return Chunk(ledger, rows[0].first_ordinal, batch), count


def _place(ledger: int, group: RowGroup) -> Position:
    return Position(ledger, group.entry, group.index)


def path_now(storage: Storage, ledger: int) -> str | None:
    """Return the file that now holds a sealed ledger; None if the ledger was deleted.

    Raises `StoreError` if the topic's files lie in another store by now.
    """
    statement = sa.select(ledgers.c.path).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    with storage.backend.snapshot() as connection:
        storage.refuse_moved(connection)
        return connection.execute(statement).scalar()


def cut(chunk: Chunk, start: Position, stop: Position) -> Iterator[Chunk]:
    """Cut a chunk to the messages from ``start`` to before ``stop``; None if none remain."""
    table = chunk.table
    first, last = 0, table.num_rows
    if chunk.ledger in (start.ledger, stop.ledger):
        entry, index = table.column("entry").to_numpy(), table.column("index").to_numpy()
        first = row_of(entry, index, start[1:]) if start.ledger == chunk.ledger else 0
        last = row_of(entry, index, stop[1:]) if stop.ledger == chunk.ledger else table.num_rows
    if first < last:
        yield Chunk(chunk.ledger, chunk.first_ordinal + first, table.slice(first, last - first))
