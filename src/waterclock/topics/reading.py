"""Reading a topic from one position to another, across ledgers, while they are being sealed and deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.database.topic_catalogue import entries, ledgers
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.topics.counter import Counter
from waterclock.topics.entries import decode_entries
from waterclock.topics.ledger_files import LostFileError
from waterclock.topics.ledgers import ledger_from
from waterclock.topics.row_groups import RowGroup, row_of
from waterclock.topics.sealed_file import ENCODED
from waterclock.topics.sealed_ledger import SealedLedger
from waterclock.topics.storage import Storage

CHUNK_MESSAGES = 65_536
"""Messages of unsealed entries that are taken from the database at once, at most."""

CHUNK_BYTES = 8 << 20
"""Their bytes, at most; a single entry may be larger."""

_CHUNK_ENTRIES = 4096


class Chunk(NamedTuple):
    """Some messages that follow one another.

    Attributes
    ----------
    ledger
        Their ledger; where the table has a column of this name, that of the first.
    first_ordinal
        Number of the first of them in the topic.
    table
        The columns asked for, then entry and index.
    """

    ledger: int
    first_ordinal: int
    table: pa.RecordBatch | pa.Table


def read_chunks(storage: Storage, start: Position, stop: Position, columns: Collection[str]) -> Iterator[Chunk]:
    """Read the messages from ``start`` to before ``stop`` that are left, a bounded piece at a time.

    No transaction is open between two pieces: each looks anew where its ledger is by now.

    Raises
    ------
    UnavailableError
        Where the file of a ledger cannot be read; the text names it.
    """
    position = start
    while position < stop:
        part = _look(storage, position, stop)
        if part is None:
            return
        if isinstance(part, _Rows):
            if part.entries:
                yield from cut(_decoded(part, columns), max(position, Position(part.ledger, 0, 0)), stop)
            position = part.following
        else:
            yield from _read_sealed(storage, part, position, stop, columns)
            position = Position(part["ledger"] + 1, 0, 0)


def positioned(chunk: Chunk, columns: Sequence[str], *, encoded: bool = False) -> Iterator[pa.RecordBatch]:
    """Bring a chunk into the wanted columns of `POSITIONED_SCHEMA`; ``encoded`` as of `SealedFile`."""
    schema = pa.schema([_encoded_field(name) if encoded else POSITIONED_SCHEMA.field(name) for name in columns])
    batches = chunk.table.to_batches() if isinstance(chunk.table, pa.Table) else [chunk.table]
    for batch in batches:
        given = batch.schema.names
        missing = "ledger" in columns and "ledger" not in given
        ledger = pa.repeat(pa.scalar(chunk.ledger, pa.int64()), batch.num_rows) if missing else None
        arrays = [ledger if ledger is not None and name == "ledger" else batch.column(name) for name in columns]
        if encoded:  # messages that are not sealed come as texts
            arrays = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _encoded_field(name: str) -> pa.Field:
    field = POSITIONED_SCHEMA.field(name)
    return field.with_type(pa.dictionary(pa.int32(), field.type)) if name in ENCODED else field


def check_columns(columns: Sequence[str] | None) -> list[str]:
    """Check a choice of columns; None means all."""
    if columns is None:
        return list(POSITIONED_SCHEMA.names)
    unknown = [name for name in columns if name not in POSITIONED_SCHEMA.names]
    if unknown or not columns:
        wrong = repr(unknown[0]) if unknown else "[]"
        raise InvalidArgumentError(f"columns: {wrong} is none; choose from {', '.join(POSITIONED_SCHEMA.names)}")
    return list(columns)


def check_limit(limit: int | None) -> int | None:
    """Check a number of messages; None means no limit."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody checks types
        raise InvalidArgumentError(f"limit: {limit!r} is no number of messages; give an int of at least 1")
    return limit


def check_position(position: Position, name: str) -> Position:
    """Check that something is a position."""
    if not isinstance(position, Position):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody checks types
        raise InvalidArgumentError(f"{name}: {position!r} is no Position; write Position(ledger, entry, index)")
    return position


@dataclass(frozen=True, slots=True)
class _Rows:
    """Entries of a ledger that is not sealed, and where to look next."""

    ledger: int
    entries: list[tuple[int, bytes]]
    first_ordinal: int
    following: Position


def _look(storage: Storage, position: Position, stop: Position) -> sa.RowMapping | _Rows | None:
    """See in one snapshot what stands at ``position``: a sealed ledger, some entries, or the end."""
    with storage.backend.snapshot() as connection:
        row = ledger_from(storage, connection, position.ledger)
        if row is None:
            head = Counter.of_row(storage.row(connection)).position
            if position >= head:
                return None
            return _load(storage, connection, max(position, Position(head.ledger, 0, 0)), stop, head)
        if row["state"] == "sealed":
            return row
        start = max(position, Position(row["ledger"], 0, 0))
        return _load(storage, connection, start, stop, Position(row["ledger"] + 1, 0, 0))


def _load(storage: Storage, connection: sa.Connection, start: Position, stop: Position, end: Position) -> _Rows:
    here = [entries.c.topic_id == storage.topic_id, entries.c.ledger == start.ledger]
    sizes = sa.select(entries.c.entry, entries.c.messages, entries.c.bytes, entries.c.first_ordinal)
    sizes = sizes.where(*here, entries.c.entry >= start.entry).order_by(entries.c.entry).limit(_CHUNK_ENTRIES)
    if stop.ledger == start.ledger:
        sizes = sizes.where(entries.c.entry <= stop.entry)
    rows = connection.execute(sizes).all()
    if not rows:
        return _Rows(start.ledger, [], 0, end)
    totals = zip(accumulate(row.messages for row in rows), accumulate(row.bytes for row in rows), strict=True)
    fitting = sum(1 for _ in takewhile(lambda total: total[0] <= CHUNK_MESSAGES and total[1] <= CHUNK_BYTES, totals))
    last = rows[max(fitting, 1) - 1]
    data = sa.select(entries.c.entry, entries.c.data).where(*here, entries.c.entry.between(start.entry, last.entry))
    loaded = [(row.entry, row.data) for row in connection.execute(data.order_by(entries.c.entry))]
    return _Rows(start.ledger, loaded, rows[0].first_ordinal, Position(start.ledger, last.entry + 1, 0))


def _decoded(part: _Rows, columns: Collection[str]) -> Chunk:
    return Chunk(part.ledger, part.first_ordinal, decode_entries(part.ledger, part.entries, columns))


def _read_sealed(
    storage: Storage, row: sa.RowMapping, start: Position, stop: Position, columns: Collection[str]
) -> Iterator[Chunk]:
    ledger = row["ledger"]
    ordinal = row["first_ordinal"]
    position = start
    try:
        file = SealedLedger(storage.files, row)
        for number, group in enumerate(file.groups):
            following = file.groups[number + 1] if number + 1 < len(file.groups) else None
            if _place(ledger, group) >= stop:
                return
            if following is None or _place(ledger, following) > start:
                position = max(start, _place(ledger, group))
                table = file.read(number, {*columns, "entry", "index"})
                yield from cut(Chunk(ledger, ordinal, table), start, stop)
            ordinal += group.messages
    except LostFileError:
        path = path_now(storage, ledger)
        if path == row["path"]:
            raise
        if path is not None:  # compaction has moved it, under our eyes
            yield from read_chunks(storage, position, min(stop, Position(ledger + 1, 0, 0)), columns)
        # Or retention has deleted it: what is left comes after it.


def _place(ledger: int, group: RowGroup) -> Position:
    return Position(ledger, group.entry, group.index)


def path_now(storage: Storage, ledger: int) -> str | None:
    """Say which file holds a sealed ledger by now; None where the ledger was deleted.

    Raises
    ------
    StoreError
        Where the topic's files lie in another store by now.
    """
    statement = sa.select(ledgers.c.path).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    with storage.backend.snapshot() as connection:
        storage.refuse_moved(connection)
        return connection.execute(statement).scalar()


def cut(chunk: Chunk, start: Position, stop: Position) -> Iterator[Chunk]:
    """Leave out of a chunk what lies before ``start`` or not before ``stop``; nothing where nothing is left."""
    table = chunk.table
    first, last = 0, table.num_rows
    if chunk.ledger in (start.ledger, stop.ledger):
        entry, index = table.column("entry").to_numpy(), table.column("index").to_numpy()
        first = row_of(entry, index, start[1:]) if start.ledger == chunk.ledger else 0
        last = row_of(entry, index, stop[1:]) if stop.ledger == chunk.ledger else table.num_rows
    if first < last:
        yield Chunk(chunk.ledger, chunk.first_ordinal + first, table.slice(first, last - first))
