"""Compacts a topic: joins small files of adjacent sealed ledgers without changing a message's position.

A ledger keeps its number, its entries and its bounds; only the file of its messages changes. So positions that users,
streams and subscriptions have stored stay valid, and searches still work. If a compaction is killed at any point, no
message is lost or read twice:

1. `_begin` records a pending file of a new name, with an owner and a lease.
2. `_write` writes the file, makes it durable, reads it back, compares all values, and computes checksums.
3. `_commit` assigns the new file to all the ledgers in one transaction, if each still has the file that was read and
   the pending file is still ours. The old files stay for the grace time for current readers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock._support.quoting import counted
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError, LeaseLostError
from waterclock.topics.catalogue.damage_policy import located
from waterclock.topics.catalogue.pending_files import Pending, finish, forget_pending, new_file, record, renewing, taken
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stored_bytes import resizing
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.format.file_facts import LedgerFacts, facts_metadata
from waterclock.topics.format.fingerprints import fingerprint
from waterclock.topics.format.row_groups import RowGroup, row_groups_to_json
from waterclock.topics.reading.reading import path_now
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.store.sealed_file import ROW_GROUP_BYTES, SHARED_SCHEMA, write_row_groups
from waterclock.topics.upkeep import retention
from waterclock.topics.upkeep.partial_failure import Done, PartialFailure, failed, total
from waterclock.topics.upkeep.retention import leave_for_sweep
from waterclock.topics.upkeep.sweeping import sweep
from waterclock.topics.upkeep.verified_file import HashedSink, read_back, reads_differently

FILE_BYTES = 128 << 20
"""Target size of a compacted file, bytes."""

SHARED_GROUP_MESSAGES = 8192
"""A row group this large ends with its ledger, so that a reader of one ledger reads little of its neighbours."""

_COLUMNS = SHARED_SCHEMA.names


class Run(NamedTuple):
    """Adjacent ledgers whose files will be joined. Can be pickled."""

    numbers: tuple[int, ...]  # each ledger
    paths: tuple[str, ...]  # the file that holds each ledger


class _CompactedFile(NamedTuple):
    groups: dict[int, list[RowGroup]]
    size: int
    footer: bytes
    chunks: dict[int, list[int]]


class _BadLedgerError(Exception):
    """A ledger of a run cannot be read; its cause says why."""

    def __init__(self, ledger: int, why: DamagedError | LostFileError) -> None:
        super().__init__(ledger)
        self.ledger = ledger
        self.why = why


def compact_topic(storage: Storage, file_bytes: int = FILE_BYTES) -> int:
    """Join small files of adjacent ledgers into larger ones; return how many files were saved.

    Parameters
    ----------
    file_bytes
        Target size. A file of at least half of that stays as it is.

    A ledger that is corrupt, or whose file is gone, stays as it is, and the others are compacted around it.

    Raises
    ------
    DamagedError, LostFileError
        If there are such ledgers, after all others are compacted; it names them.
    UnavailableError
        If a file cannot be reached or written, or reads back differently; its ledgers stay as they were.
    """
    return total(storage.name, "compacted", [compact_run(storage, run) for run in runs_to_compact(storage, file_bytes)])


def runs_to_compact(storage: Storage, file_bytes: int = FILE_BYTES) -> list[Run]:
    """Remove remains of earlier owners, and choose the ledgers whose files will be joined."""
    sweep(storage)
    columns = [ledgers.c[name] for name in ("ledger", "path", "file_bytes", "messages")]
    statement = (
        sa.select(*columns)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "sealed")
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
            size = file_bytes + 1  # large enough on its own
    if run:
        yield Run(*(tuple(each) for each in zip(*run, strict=True)))


def compact_run(storage: Storage, run: Run) -> Done:
    """Write the ledgers of a run into one file; return how many files were saved, 0 if another process was faster.

    If a ledger is corrupt or its file is gone, that is logged and noted, and the ledgers before and after it are
    written into one file each.

    Raises
    ------
    UnavailableError
        As `compact_topic`.
    """
    saved: list[int] = []
    undone: list[PartialFailure] = []
    left = [run]
    while left:
        part = left.pop()
        try:
            saved.append(_compact(storage, part))
        except _BadLedgerError as bad:
            undone.append(failed(storage.name, "compact", bad.ledger, bad.why))
            at = part.numbers.index(bad.ledger)
            for each in (slice(0, at), slice(at + 1, None)):
                around = Run(part.numbers[each], part.paths[each])
                if len(set(around.paths)) > 1:
                    left.append(around)
    return Done(sum(saved), tuple(undone))


def _compact(storage: Storage, run: Run) -> int:
    pending = _begin(storage, run)
    if pending is None:
        return 0
    freed: list[int] = []
    try:
        finish(storage, pending, lambda: freed.append(_commit(storage, pending, run, _write(storage, pending, run))))
    except LeaseLostError:
        return 0
    return max(freed[0] - 1, 0)


def _begin(storage: Storage, run: Run) -> Pending | None:
    pending = new_file(storage, run.numbers[0], run.numbers[-1])

    def record_file(connection: sa.Connection) -> Pending | None:
        _, now = storage.lock(connection)
        return (
            pending
            if _paths(storage, connection, run) == run.paths and record(storage, connection, pending, now)
            else None
        )

    return storage.backend.transact(record_file)


def _paths(storage: Storage, connection: sa.Connection, run: Run) -> tuple[str, ...]:
    statement = sa.select(ledgers.c.path).where(*_chosen(storage, run)).order_by(ledgers.c.ledger)
    return tuple(connection.execute(statement).scalars())


def _chosen(storage: Storage, run: Run) -> tuple[sa.ColumnElement[bool], ...]:
    return ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(run.numbers[0], run.numbers[-1])


def _write(storage: Storage, pending: Pending, run: Run) -> _CompactedFile:
    groups: dict[int, list[RowGroup]] = {number: [] for number in run.numbers}
    fingerprints: list[int] = []
    rows: list[sa.RowMapping] = []

    def facts() -> Mapping[str, str]:
        listed = [LedgerFacts.of_row(row, groups[row["ledger"]]) for row in rows]
        return facts_metadata(storage.name, storage.origin, listed)

    with storage.files.create(pending.path) as sink:
        tables = _row_groups(_pieces(storage, pending, run, rows), groups, fingerprints)
        hashed = HashedSink(sink)
        footer = write_row_groups(hashed, SHARED_SCHEMA, renewing(storage, pending, tables), facts)
    size = storage.files.size(pending.path)
    written = read_back(storage.files, pending.path, size, footer, fingerprints, hashed.checksum)
    found, chunks = _measured(written, groups)
    if found != groups:
        raise reads_differently(storage.files, pending.path)
    return _CompactedFile(groups, size, footer, chunks)


def _pieces(
    storage: Storage, pending: Pending, run: Run, rows: list[sa.RowMapping]
) -> Iterator[tuple[int, int, pa.Table]]:
    """Read the ledgers, a row group at a time.

    Yields the ledger's number, how many messages are lost before the row group, and the row group.

    The catalogue's row of each ledger is added to ``rows``.
    """
    for number in run.numbers:
        statement = sa.select(ledgers).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == number)
        with storage.backend.snapshot() as connection:
            row = connection.execute(statement).mappings().one_or_none()
        if row is None or row["path"] not in run.paths:
            raise taken(storage, pending)
        rows.append(row)
        try:
            for skipped, table in _of_ledger(storage, row):
                yield number, skipped, table
        except (DamagedError, LostFileError) as error:
            if path_now(storage, number) != row["path"]:
                raise taken(storage, pending) from error
            raise _BadLedgerError(number, error) from error


def _of_ledger(storage: Storage, row: sa.RowMapping) -> Iterator[tuple[int, pa.Table]]:
    ledger = SealedLedger(storage, row)
    written = sum(group.messages + group.skipped for group in ledger.groups)
    if written > row["messages"]:
        error = DamagedError(
            f"its row groups hold {counted(written, 'message')}, but the catalogue has {row['messages']}"
        )
        raise located(error, storage.name, ledger=ledger.number)
    for number, group in enumerate(ledger.groups):
        table = ledger.read(number, _COLUMNS)
        if "ledger" not in table.column_names:
            numbers = pa.repeat(pa.scalar(ledger.number, pa.int64()), table.num_rows)
            table = table.append_column(SHARED_SCHEMA.field("ledger"), numbers)
        elif set(table["ledger"].unique().to_pylist()) != {ledger.number}:
            error = DamagedError(f"row group {group.number} holds messages of another ledger")
            raise located(error, storage.name, ledger=ledger.number, entry=group.entry)
        yield group.skipped, table.select(_COLUMNS)


def _row_groups(
    pieces: Iterator[tuple[int, int, pa.Table]], groups: dict[int, list[RowGroup]], fingerprints: list[int]
) -> Iterator[pa.Table]:
    """Join pieces into the file's row groups, and note the new place and facts of each."""

    def whole(held: list[pa.Table]) -> pa.Table:
        table = pa.concat_tables(held)
        fingerprints.append(fingerprint(table))
        return table

    held: list[pa.Table] = []
    messages = size = number = 0
    for ledger, skipped, piece in pieces:
        too_much = piece.num_rows >= SHARED_GROUP_MESSAGES or size + piece.nbytes > ROW_GROUP_BYTES
        if held and (messages >= SHARED_GROUP_MESSAGES or too_much):
            yield whole(held)
            held, messages, size, number = [], 0, 0, number + 1
        before = groups[ledger][-1] if groups[ledger] else None
        groups[ledger].append(replace(RowGroup.of_table(piece, before, skipped), number=number, row=messages))
        held.append(piece)
        messages += piece.num_rows
        size += piece.nbytes
    if held:
        yield whole(held)


def _measured(
    tables: Iterator[tuple[int, pa.Table, list[int]]], expected: dict[int, list[RowGroup]]
) -> tuple[dict[int, list[RowGroup]], dict[int, list[int]]]:
    """Measure the pieces of the file, in its order, and note the checksums of its row groups."""
    found: dict[int, list[RowGroup]] = {ledger: [] for ledger in expected}
    chunks: dict[int, list[int]] = {}
    pieces: defaultdict[int | None, list[tuple[int, RowGroup]]] = defaultdict(list)
    for ledger, each in expected.items():
        for piece in each:
            pieces[piece.number].append((ledger, piece))
    for number, table, sums in tables:
        chunks[number] = sums
        for ledger, piece in pieces[number]:
            part = table.slice(piece.row, piece.messages)
            before = found[ledger][-1] if found[ledger] else None
            if part.num_rows and set(part["ledger"].unique().to_pylist()) == {ledger}:
                group = RowGroup.of_table(part, before, piece.skipped)
                found[ledger].append(replace(group, number=number, row=piece.row))
    return found, chunks


def _imported_files(storage: Storage, connection: sa.Connection, run: Run) -> set[str]:
    """Name the imported files of a run: another database may still use them, so they stay."""
    statement = sa.select(ledgers.c.path).where(*_chosen(storage, run), ledgers.c.imported > 0)
    return set(connection.execute(statement).scalars())


def _commit(storage: Storage, pending: Pending, run: Run, file: _CompactedFile) -> int:
    """Point the ledgers to the new file; return how many files are no longer needed."""
    total_messages = sum(group.messages for groups in file.groups.values() for group in groups)

    def replace_files(connection: sa.Connection) -> int:
        _, now = storage.lock(connection)
        paths = _paths(storage, connection, run)
        former = dict(zip(run.paths, run.numbers, strict=True))
        if set(paths) == {pending.path}:
            return len(former)  # already done, but the answer was lost
        if paths != run.paths:
            raise taken(storage, pending)
        forget_pending(storage, connection, pending)
        kept = _imported_files(storage, connection, run)
        with resizing(storage, connection, run.numbers[0], run.numbers[-1]):
            for number, groups in file.groups.items():
                written = sum(group.messages for group in groups)
                row_groups = row_groups_to_json(groups)
                chunks = {group.number: file.chunks[group.number] for group in groups if group.number is not None}
                values = {
                    "path": pending.path,
                    "file_bytes": file.size,
                    "bytes": file.size * written // total_messages,
                    "row_groups": row_groups,
                    "lost_in_file": 0,
                    "imported": 0,
                    "footer": None,
                    # One copy for all of them, with the last ledger, because ledgers are deleted from the first on.
                    "shared_footer": file.footer if number == run.numbers[-1] else None,
                    "checksums": FileChecksums.of(file.footer, row_groups, chunks).to_bytes(),
                }
                key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == number)
                connection.execute(sa.update(ledgers).where(*key).values(values))
        still = sa.select(ledgers.c.path).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.path.in_(former))
        for path in connection.execute(still.distinct()).scalars():
            del former[path]  # a damaged ledger was left in it
        leave_for_sweep(storage, connection, {p: n for p, n in former.items() if p not in kept}, now + retention.GRACE)
        return len(former)

    return storage.backend.transact(replace_files)
