"""Compaction: small files of adjacent sealed ledgers become one file, and no message changes its place.

A ledger keeps its number, its entries and its bounds; only where its messages lie changes. So positions, which are
public and which streams and subscriptions keep, mean the same before and after, and whoever searches a topic searches
it in the same way. Killed at any point, nothing is lost or read twice:

1. `_begin` records a pending file of a new name, with an owner and a lease.
2. `_write` writes the file, makes it durable, and reads it back to verify it.
3. `_commit` turns all the ledgers over to it in one transaction, if each still has the file that was read and the
   pending file is still ours. The former files stay for the grace time, for those who are reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.database.topic_catalogue import ledgers
from waterclock.errors import LeaseLostError, UnavailableError
from waterclock.topics import retention
from waterclock.topics.pending_files import Pending, finish, new_file, record, renewing, settle, taken
from waterclock.topics.retention import leave_for_sweep
from waterclock.topics.row_groups import RowGroup, row_groups_to_json
from waterclock.topics.sealed_file import ROW_GROUP_BYTES, SHARED_SCHEMA, SealedFile, write_row_groups
from waterclock.topics.sealed_ledger import SealedLedger
from waterclock.topics.sizes import resizing
from waterclock.topics.storage import Storage
from waterclock.topics.sweeping import sweep

FILE_BYTES = 128 << 20
"""Size of a file that compaction aims at, bytes."""

SHARED_GROUP_MESSAGES = 8192
"""Messages at which a row group ends with its ledger: who reads one ledger reads little of its neighbours."""

_COLUMNS = SHARED_SCHEMA.names


class Run(NamedTuple):
    """Adjacent ledgers whose files are to become one. Can be pickled.

    Attributes
    ----------
    numbers, paths
        Each ledger, and the file that holds it.
    """

    numbers: tuple[int, ...]
    paths: tuple[str, ...]


class _Written(NamedTuple):
    groups: dict[int, list[RowGroup]]
    size: int


def compact_topic(storage: Storage, file_bytes: int = FILE_BYTES) -> int:
    """Join small files of adjacent ledgers into larger ones; give how many files there are fewer.

    Parameters
    ----------
    file_bytes
        Size to aim at. A file of at least half of that stays as it is.

    Raises
    ------
    UnavailableError
        Where a file cannot be read or written, or reads back differently; the ledgers stay as they were.
    """
    return sum(compact_run(storage, run) for run in runs_to_compact(storage, file_bytes))


def runs_to_compact(storage: Storage, file_bytes: int = FILE_BYTES) -> list[Run]:
    """Remove what earlier owners left behind, and choose the ledgers whose files are to become one."""
    sweep(storage)
    columns = [ledgers.c[name] for name in ("ledger", "path", "file_bytes", "messages")]
    statement = (
        sa.select(*columns)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "sealed", ledgers.c.row_groups.is_not(None))
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        rows = connection.execute(statement).all()
    return [run for run in _runs(rows, file_bytes) if len(set(run.paths)) > 1]


def _runs(rows: Sequence[sa.Row[tuple[int, str, int, int]]], file_bytes: int) -> Iterator[Run]:
    run: list[tuple[int, str]] = []
    size = 0
    for row in rows:
        same_file = bool(run) and run[-1][1] == row.path
        more = 0 if same_file else row.file_bytes
        goes_on = same_file or (
            bool(run) and run[-1][0] + 1 == row.ledger and size + more <= file_bytes and more < file_bytes // 2
        )
        if run and not goes_on:
            yield Run(*(tuple(each) for each in zip(*run, strict=True)))
            run, size = [], 0
        run.append((row.ledger, row.path))
        size += more
        if more >= file_bytes // 2:
            size = file_bytes + 1  # large enough by itself: nothing joins it
    if run:
        yield Run(*(tuple(each) for each in zip(*run, strict=True)))


def compact_run(storage: Storage, run: Run) -> int:
    """Write the ledgers of a run into one file; give how many files there are fewer, 0 where somebody else was faster.

    Raises
    ------
    UnavailableError
        As `compact_topic`.
    """
    pending = _begin(storage, run)
    if pending is None:
        return 0
    try:
        finish(storage, pending, lambda: _commit(storage, pending, run, _write(storage, pending, run)))
    except LeaseLostError:
        return 0
    return len(set(run.paths)) - 1


def _begin(storage: Storage, run: Run) -> Pending | None:
    pending = new_file(storage, run.numbers[0], run.numbers[-1])

    def work(connection: sa.Connection) -> Pending | None:
        _, now = storage.lock(connection)
        return (
            pending
            if _paths(storage, connection, run) == run.paths and record(storage, connection, pending, now)
            else None
        )

    return storage.backend.transact(work)


def _paths(storage: Storage, connection: sa.Connection, run: Run) -> tuple[str, ...]:
    statement = sa.select(ledgers.c.path).where(*_chosen(storage, run)).order_by(ledgers.c.ledger)
    return tuple(connection.execute(statement).scalars())


def _chosen(storage: Storage, run: Run) -> tuple[sa.ColumnElement[bool], ...]:
    return ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(run.numbers[0], run.numbers[-1])


def _write(storage: Storage, pending: Pending, run: Run) -> _Written:
    groups: dict[int, list[RowGroup]] = {number: [] for number in run.numbers}
    with storage.files.create(pending.path) as sink:
        tables = _row_groups(_pieces(storage, pending, run), groups)
        footer = write_row_groups(sink, SHARED_SCHEMA, renewing(storage, pending, tables))
    size = storage.files.size(pending.path)
    written = SealedFile(storage.files, pending.path, size, footer, check=True)
    if _measured(written, groups) != groups:
        raise UnavailableError(
            f"{storage.files.name(pending.path)} reads back differently from what was written;"
            " its disk or store is not to be trusted"
        )
    return _Written(groups, size)


def _pieces(storage: Storage, pending: Pending, run: Run) -> Iterator[tuple[int, pa.Table]]:
    """Read the ledgers, a row group at a time."""
    for number in run.numbers:
        statement = sa.select(ledgers).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == number)
        with storage.backend.snapshot() as connection:
            row = connection.execute(statement).mappings().one_or_none()
        if row is None or row["path"] not in run.paths:
            raise taken(storage, pending)
        ledger = SealedLedger(storage.files, row)
        for group in range(len(ledger.groups)):
            table = ledger.read(group, _COLUMNS)
            if "ledger" not in table.column_names:
                table = table.append_column(
                    SHARED_SCHEMA.field("ledger"), pa.repeat(pa.scalar(number, pa.int64()), table.num_rows)
                )
            yield number, table.select(_COLUMNS)


def _row_groups(pieces: Iterator[tuple[int, pa.Table]], groups: dict[int, list[RowGroup]]) -> Iterator[pa.Table]:
    """Join pieces into the file's row groups, and note where each has come to lie."""
    held: list[pa.Table] = []
    messages = size = number = 0
    for ledger, piece in pieces:
        too_much = piece.num_rows >= SHARED_GROUP_MESSAGES or size + piece.nbytes > ROW_GROUP_BYTES
        if held and (messages >= SHARED_GROUP_MESSAGES or too_much):
            yield pa.concat_tables(held)
            held, messages, size, number = [], 0, 0, number + 1
        before = groups[ledger][-1] if groups[ledger] else None
        groups[ledger].append(replace(RowGroup.of_table(piece, before), number=number, row=messages))
        held.append(piece)
        messages += piece.num_rows
        size += piece.nbytes
    if held:
        yield pa.concat_tables(held)


def _measured(file: SealedFile, expected: dict[int, list[RowGroup]]) -> dict[int, list[RowGroup]]:
    """Read the file and measure the pieces that are said to lie there, in the order of the file."""
    found: dict[int, list[RowGroup]] = {ledger: [] for ledger in expected}
    number, table = -1, pa.table({})
    for ledger, pieces in expected.items():
        for piece in pieces:
            if piece.number != number:
                number = piece.number or 0
                table = file.read(number, _COLUMNS)
            part = table.slice(piece.row, piece.messages)
            before = found[ledger][-1] if found[ledger] else None
            if part.num_rows and set(part["ledger"].unique().to_pylist()) == {ledger}:
                found[ledger].append(replace(RowGroup.of_table(part, before), number=number, row=piece.row))
    return found


def _commit(storage: Storage, pending: Pending, run: Run, file: _Written) -> None:
    total = sum(group.messages for groups in file.groups.values() for group in groups)

    def work(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        paths = _paths(storage, connection, run)
        if set(paths) == {pending.path}:
            return  # done already, and the answer got lost
        if paths != run.paths:
            raise taken(storage, pending)
        settle(storage, connection, pending)
        with resizing(storage, connection, run.numbers[0], run.numbers[-1]):
            for number, groups in file.groups.items():
                written = sum(group.messages for group in groups)
                values = {
                    "path": pending.path,
                    "file_bytes": file.size,
                    "bytes": file.size * written // total,
                    "row_groups": row_groups_to_json(groups),
                    "footer": None,
                }
                mine = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == number)
                key = (*mine, ledgers.c.messages == written)
                if connection.execute(sa.update(ledgers).where(*key).values(values)).rowcount == 0:
                    raise UnavailableError(
                        f"ledger {number} of topic {storage.name!r}: its file holds {written} messages, the catalogue"
                        " says otherwise; it is left as it is"
                    )
        former = dict(zip(run.paths, run.numbers, strict=True))
        leave_for_sweep(storage, connection, former, now + retention.GRACE)

    storage.backend.transact(work)
