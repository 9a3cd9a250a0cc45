"""Looking messages up by their positions, many at once, as Spark does when it joins payloads to finished batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.database.topic_catalogue import entries
from waterclock.errors import DamagedError, InvalidArgumentError, NotFoundError
from waterclock.message import Position
from waterclock.topics.damage import located
from waterclock.topics.entries import decode_entries
from waterclock.topics.ledgers import ledger_from
from waterclock.topics.losses import is_lost
from waterclock.topics.reading import Chunk, positioned
from waterclock.topics.sealed_ledger import SealedLedger
from waterclock.topics.storage import Storage
from waterclock.topics.succession import look_in

_Places = npt.NDArray[np.int64]
"""Rows of (entry, index)."""

_ENTRIES_AT_ONCE = 256
_MORE_THAN_AN_ENTRY_HOLDS = 2**31


def look_up(
    storage: Storage, positions: Sequence[Position] | pa.Table | pa.RecordBatch, columns: Sequence[str]
) -> pa.Table:
    """Read the messages at some positions, in the order in which the positions are given.

    Positions that lie together are read together: each row group is fetched once.

    Raises
    ------
    NotFoundError
        Where no message stands at a position (any more), also where it is recorded as lost.
    DamagedError
        Where it is not what was written, or is missing though it was not deleted.
    """
    wanted = _as_array(positions)
    order = np.lexsort((wanted[:, 2], wanted[:, 1], wanted[:, 0]))
    ordered = wanted[order]
    parts: list[pa.RecordBatch] = []
    for ledger in np.unique(ordered[:, 0]).tolist():
        places = ordered[ordered[:, 0] == ledger][:, 1:]
        for table, rows in _of_ledger(storage, ledger, places, columns):
            parts.extend(positioned(Chunk(ledger, 0, table.take(pa.array(rows))), columns))
    schema = pa.schema([POSITIONED_SCHEMA.field(name) for name in columns])
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(parts, schema=schema).take(pa.array(back))


def _as_array(positions: Sequence[Position] | pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    if isinstance(positions, Sequence):
        return np.array(positions, dtype=np.int64).reshape(-1, 3)
    columns = [positions.column(name) for name in ("ledger", "entry", "index")]
    if any(column.null_count for column in columns):
        raise InvalidArgumentError("positions: some are null; leave those out")
    return np.stack([column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns], axis=1)


def _of_ledger(
    storage: Storage, ledger: int, places: _Places, columns: Sequence[str]
) -> Iterator[tuple[pa.Table | pa.RecordBatch, _Places]]:
    """Read what holds the sorted places of one ledger, each piece with its rows that are wanted."""
    left = places
    while len(left):
        # Looked at anew for each piece: the ledger may be sealed at any time.
        with storage.backend.snapshot() as connection:
            row = ledger_from(storage, connection, ledger)
            if row is None or row["ledger"] > ledger or row["state"] != "sealed":
                last = np.unique(left[:, 0])[:_ENTRIES_AT_ONCE][-1]
                part, left = left[left[:, 0] <= last], left[left[:, 0] > last]
                batch = _read_entries(storage, connection, ledger, part, columns)
                yield batch, _rows(storage, ledger, batch, part)
                continue
        yield from _of_file(storage, row, left, columns)
        return


def _of_file(
    storage: Storage, row: sa.RowMapping, places: _Places, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, _Places]]:
    file = SealedLedger(storage, row)
    firsts = _keys(np.array([(group.entry, group.index) for group in file.groups], dtype=np.int64))
    numbers = np.maximum(np.searchsorted(firsts, _keys(places), side="right") - 1, 0)
    for number in np.unique(numbers):
        table = file.read(int(number), {*columns, "entry", "index"})
        yield table, _rows(storage, row["ledger"], table, places[numbers == number])


def _read_entries(
    storage: Storage, connection: sa.Connection, ledger: int, places: _Places, columns: Sequence[str]
) -> pa.RecordBatch:
    wanted = [int(entry) for entry in np.unique(places[:, 0])]
    statement = (
        sa.select(entries.c.entry, entries.c.data)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger, entries.c.entry.in_(wanted))
        .order_by(entries.c.entry)
    )
    rows = [(row.entry, row.data) for row in connection.execute(statement)]
    _refuse_gap(storage, connection, ledger, sorted(set(wanted) - {entry for entry, _ in rows}))
    kept = [(entry, data) for entry, data in rows if not is_lost(data)]
    if not kept:
        raise _nothing(storage, ledger, places[0])
    try:
        return decode_entries(ledger, kept, columns)
    except DamagedError as error:
        raise located(error, storage.name, ledger=ledger) from error


def _refuse_gap(storage: Storage, connection: sa.Connection, ledger: int, absent: list[int]) -> None:
    """Raise an error where what is between the first of some entries that are not there and what follows is a hole."""
    if absent:
        start = Position(ledger, absent[0], 0)
        for gap in look_in(storage, connection, start, start._replace(index=1), None).gaps:
            raise gap.error


def _rows(storage: Storage, ledger: int, table: pa.Table | pa.RecordBatch, places: _Places) -> _Places:
    there = _keys(np.stack([table.column("entry").to_numpy(), table.column("index").to_numpy()], axis=1))
    wanted = _keys(places)
    rows = np.searchsorted(there, wanted)
    absent = (rows == len(there)) | (there[np.minimum(rows, len(there) - 1)] != wanted)
    if absent.any():
        raise _nothing(storage, ledger, places[absent][0])
    return rows


def _keys(places: _Places) -> _Places:
    return places[:, 0] * _MORE_THAN_AN_ENTRY_HOLDS + places[:, 1]


def _nothing(storage: Storage, ledger: int, place: _Places) -> NotFoundError:
    position = Position(ledger, int(place[0]), int(place[1]))
    return NotFoundError(f"no message stands at {position} in topic {storage.name!r}; was its ledger deleted?")
