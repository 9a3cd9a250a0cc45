"""Looks up many messages at once by their positions, as Spark does to join payloads to finished batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.database.schema.topic_catalogue import entries
from waterclock.errors import DamagedError, InvalidArgumentError, NotFoundError, WaterclockError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import located
from waterclock.topics.catalogue.ledgers import ledger_from
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import is_lost
from waterclock.topics.format.entries import decode_entries
from waterclock.topics.reading.contiguity import CHUNK_BYTES, look_in
from waterclock.topics.reading.decoded_groups import DecodedGroups
from waterclock.topics.reading.reading import Chunk, positioned
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError

_Places = npt.NDArray[np.int64]
"""Rows of (entry, index, number): the number is the place among the given positions."""

_ENTRIES_AT_ONCE = 256
_MORE_THAN_AN_ENTRY_HOLDS = 2**31


class _LookedUp(NamedTuple):
    """Some messages of a ledger that were read together."""

    messages: pa.Table | pa.RecordBatch
    wanted: _Places


class TooManyBytesError(Exception):
    """The messages at some positions exceed the caller's limit in bytes; look up fewer.

    Attributes
    ----------
    size, messages
        Bytes of the messages that were read, and their number.
    """

    def __init__(self, size: int, messages: int) -> None:
        super().__init__(f"{messages:,} messages have {size:,} bytes")
        self.size = size
        self.messages = messages


def look_up(
    storage: Storage,
    positions: Sequence[Position] | pa.Table | pa.RecordBatch,
    columns: Sequence[str],
    pass_over: tuple[type[WaterclockError], ...] = (),  # errors for which unreadable messages become null rows instead
    most_bytes: int | None = None,  # bytes of messages at which to give up; None: no limit
    decoded: DecodedGroups | None = None,  # the row groups that earlier lookups of the same columns decoded
) -> pa.Table:
    """Read the messages at some positions, in the order in which the positions are given.

    Neighbouring positions are read together: each row group is fetched once.

    Raises `TooManyBytesError` if the messages have more than ``most_bytes``. Raises `NotFoundError` if no message is at
    a position (any more), including lost ones. Raises `DamagedError` if a message differs from its written form, or is
    missing though it was not deleted. Raises `LostFileError` if the file of a ledger is gone.
    """
    wanted = _as_array(positions)
    ordered = np.column_stack([wanted, np.arange(len(wanted))])[np.lexsort((wanted[:, 2], wanted[:, 1], wanted[:, 0]))]
    parts: list[pa.RecordBatch] = []
    found = np.full(len(wanted), -1)
    count = size = 0
    for ledger in np.unique(ordered[:, 0]).tolist():
        lookup = _Lookup(storage, ledger, columns, pass_over, decoded)
        for table, places in lookup.pieces(ordered[ordered[:, 0] == ledger][:, 1:]):
            there, rows = _rows(table, places)
            if not there.all():
                lookup.pass_over(_nothing(storage, ledger, places[~there][0]))
            taken = table.take(pa.array(rows[there]))
            size += taken.nbytes
            if most_bytes is not None and size > most_bytes:
                raise TooManyBytesError(size, count + taken.num_rows)
            parts.extend(positioned(Chunk(ledger, 0, taken), columns))
            found[places[there][:, 2]] = np.arange(count, count + taken.num_rows)
            count += taken.num_rows
    schema = pa.schema([POSITIONED_SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(parts, schema=schema).take(pa.array(found, mask=found < 0))


def _as_array(positions: Sequence[Position] | pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    if isinstance(positions, Sequence):
        return np.array(positions, dtype=np.int64).reshape(-1, 3)
    columns = [positions.column(name) for name in ("ledger", "entry", "index")]
    if any(column.null_count for column in columns):
        raise InvalidArgumentError("positions must not hold nulls")
    return np.stack([column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns], axis=1)


class _Lookup:
    """Reads the pieces that hold sorted places of one ledger, one by one."""

    def __init__(
        self,
        storage: Storage,
        ledger: int,
        columns: Sequence[str],
        passed: tuple[type[WaterclockError], ...],
        decoded: DecodedGroups | None,
    ) -> None:
        self._storage = storage
        self._ledger = ledger
        self._columns = columns
        self._passed = passed
        self._decoded = decoded

    def pass_over(self, error: WaterclockError) -> None:
        """Raise the error, unless its messages may be left out."""
        if not isinstance(error, self._passed):
            raise error

    def pieces(self, places: _Places) -> Iterator[_LookedUp]:
        left = places
        while len(left):
            # Queried again for each piece: the ledger may be sealed at any time.
            with self._storage.backend.snapshot() as connection:
                row = ledger_from(self._storage, connection, self._ledger)
                if row is not None and row["ledger"] == self._ledger and row["state"] == "lost":
                    return self.pass_over(_nothing(self._storage, self._ledger, left[0]))
                if row is None or row["ledger"] > self._ledger or row["state"] != "sealed":
                    if self._passed and self._is_empty(connection):
                        return self.pass_over(self._absence(connection, left))
                    last = self._last_at_once(connection, np.unique(left[:, 0])[:_ENTRIES_AT_ONCE].tolist())
                    part, left = left[left[:, 0] <= last], left[left[:, 0] > last]
                    yield from self._of_entries(connection, part)
                    continue
            return (yield from self._of_file(row, left))

    def _is_empty(self, connection: sa.Connection) -> bool:
        """Whether no entry of the ledger is left: then a deleted ledger need not be searched entry by entry."""
        chosen = entries.c.topic_id == self._storage.topic_id, entries.c.ledger == self._ledger
        return connection.execute(sa.select(entries.c.entry).where(*chosen).limit(1)).first() is None

    def _last_at_once(self, connection: sa.Connection, wanted: list[int]) -> int:
        """Return the last of the entries that are read together, so that their bytes are bounded."""
        size, last = 0, wanted[0]
        sizes = connection.execute(self._statement(wanted, entries.c.bytes)).all() if len(wanted) > 1 else []
        for entry, held in sizes:
            if size and size + held > CHUNK_BYTES:
                return last
            size, last = size + held, entry
        return wanted[-1]

    def _statement(self, wanted: list[int], column: sa.Column[Any]) -> sa.Select[Any, Any]:
        of_ledger = entries.c.topic_id == self._storage.topic_id, entries.c.ledger == self._ledger
        chosen = sa.select(entries.c.entry, column).where(*of_ledger, entries.c.entry.in_(wanted))
        return chosen.order_by(entries.c.entry)

    def _of_file(self, row: sa.RowMapping, places: _Places) -> Iterator[_LookedUp]:
        try:
            file = SealedLedger(self._storage, row)
        except (DamagedError, LostFileError) as error:
            return self.pass_over(error)
        firsts = _keys(np.array([(group.entry, group.index) for group in file.groups], dtype=np.int64))
        numbers = np.maximum(np.searchsorted(firsts, _keys(places), side="right") - 1, 0)
        for number in np.unique(numbers):
            try:
                table = file.read(int(number), {*self._columns, "entry", "index"}, self._decoded)
            except (DamagedError, LostFileError) as error:
                self.pass_over(error)
            else:
                yield _LookedUp(table, places[numbers == number])

    def _of_entries(self, connection: sa.Connection, places: _Places) -> Iterator[_LookedUp]:
        left = places
        try:
            for piece in self._read_entries(connection, places):
                yield piece
                left = left[left[:, 0] > piece.wanted[:, 0].max()]
        except (NotFoundError, DamagedError) as error:
            self.pass_over(error)
            wanted = np.unique(left[:, 0])
            if len(wanted) > 1:  # the others may be intact
                for entry in wanted:
                    yield from self._of_entries(connection, left[left[:, 0] == entry])

    def _read_entries(self, connection: sa.Connection, places: _Places) -> Iterator[_LookedUp]:
        wanted = [int(entry) for entry in np.unique(places[:, 0])]
        rows = [(row.entry, row.data) for row in connection.execute(self._statement(wanted, entries.c.data))]
        absent = sorted(set(wanted) - {entry for entry, _ in rows})
        if absent:
            raise self._absence(connection, places[places[:, 0] == absent[0]])
        kept = [(entry, data) for entry, data in rows if not is_lost(data)]
        if not kept:
            raise _nothing(self._storage, self._ledger, places[0])
        while kept:
            try:
                batch, count = decode_entries(self._ledger, kept, self._columns)
            except DamagedError as error:
                raise located(error, self._storage.name, ledger=self._ledger) from error
            decoded, kept = kept[:count], kept[count:]
            covered = places[:, 0] <= decoded[-1][0] if kept else np.ones(len(places), np.bool_)
            yield _LookedUp(batch, places[covered])
            places = places[~covered]

    def _absence(self, connection: sa.Connection, places: _Places) -> WaterclockError:
        """Return the error for the first of `places`: damage if the topic has a gap there, else deleted."""
        start = Position(self._ledger, int(places[0, 0]), 0)
        gaps = look_in(self._storage, connection, start, start._replace(index=1), None).gaps
        return gaps[0].error if gaps else _nothing(self._storage, self._ledger, places[0])


def _rows(table: pa.Table | pa.RecordBatch, places: _Places) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which of the places are in a table, and in which of its rows."""
    there = _keys(np.stack([table.column("entry").to_numpy(), table.column("index").to_numpy()], axis=1))
    wanted = _keys(places)
    rows = np.searchsorted(there, wanted)
    return (rows < len(there)) & (there[np.minimum(rows, len(there) - 1)] == wanted), rows


def _keys(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return places[:, 0] * _MORE_THAN_AN_ENTRY_HOLDS + places[:, 1]


def _nothing(storage: Storage, ledger: int, place: npt.NDArray[np.int64]) -> NotFoundError:
    position = Position(ledger, int(place[0]), int(place[1]))
    return NotFoundError(f"no message at {position} in topic {storage.name!r}; was its ledger deleted?")
