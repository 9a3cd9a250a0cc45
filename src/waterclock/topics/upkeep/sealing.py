"""Seals a closed ledger: writes its rows to one Parquet file. A kill at any point loses nothing.

1. The ledger is closed by `ledgers.roll`, or by an append that found it full or old enough.
2. `_begin` records a pending file of a new name, with an owner and a lease.
3. `_write` writes the file, makes it durable, reads it back, compares all values, and computes checksums.
4. `_commit` assigns the file to the ledger in one transaction, if the file is still pending and still ours.
5. `delete_rows` removes the entries. Readers trust the ledger's state, not the rows, so this step can happen later.

Every step can be repeated. Once the lease of a killed owner has ended, `sweeping.sweep` removes its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError, LeaseLostError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import located
from waterclock.topics.catalogue.ledgers import roll
from waterclock.topics.catalogue.pending_files import Pending, finish, forget_pending, new_file, record, renewing, taken
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stored_bytes import resizing
from waterclock.topics.catalogue.tombstones import KEPT, LOST, record_lost_ledger
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.format.file_facts import LedgerFacts, facts_metadata
from waterclock.topics.format.row_groups import RowGroup, bounds_of, row_groups_to_json
from waterclock.topics.reading.reading import read_chunks
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.store.sealed_file import write_ledger
from waterclock.topics.upkeep.partial_failure import Done, failed, total
from waterclock.topics.upkeep.retention import enforce_retention
from waterclock.topics.upkeep.sweeping import delete_rows, sweep
from waterclock.topics.upkeep.verified_file import HashedSink, read_back, reads_differently


class _WrittenLedger(NamedTuple):
    groups: list[RowGroup]
    size: int
    footer: bytes
    chunks: dict[int, list[int]]


def seal_ledgers(storage: Storage) -> int:
    """Seal every ledger that is closed and that no other process is sealing; return how many.

    First it does the upkeep that `ledgers_to_seal` describes. A damaged ledger is left as it is, and the others are
    sealed.

    Raises `DamagedError` if ledgers are corrupt, after all others are sealed; it names them. Raises `UnavailableError`
    if a file cannot be written, or reads back differently; the ledger stays as it was.
    """
    return total(storage.name, "sealed", [try_to_seal(storage, ledger) for ledger in ledgers_to_seal(storage)])


def try_to_seal(storage: Storage, ledger: int) -> Done:
    """Seal one ledger; if it is corrupt, log that and report it as a failure.

    Raises
    ------
    UnavailableError
        As `seal_ledger`.
    """
    try:
        return Done(int(seal_ledger(storage, ledger)))
    except (DamagedError, LostFileError) as error:
        return Done(0, (failed(storage.name, "seal", ledger, error),))


def ledgers_to_seal(storage: Storage) -> list[int]:
    """Do due upkeep of the topic, and return the numbers of the closed ledgers.

    The open ledger is closed if its age or size requires it, remains of earlier owners are removed, and ledgers
    that are older than the topic's retention are deleted.
    """
    roll(storage, only_if_due=True)
    sweep(storage)
    enforce_retention(storage)
    statement = (
        sa.select(ledgers.c.ledger)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "closed")
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        return list(connection.execute(statement).scalars())


def seal_ledger(storage: Storage, ledger: int) -> bool:
    """Seal one ledger; return whether it was ours to seal.

    A ledger of which every message is recorded as lost gets no file, and is lost from then on.

    Raises `DamagedError` if an entry is corrupt or missing; the ledger stays as it was. Raises `UnavailableError` if
    its file cannot be written, or reads back differently; the ledger stays as it was.
    """
    if _lose_if_empty(storage, ledger):
        delete_rows(storage, ledger)
        return True
    pending = _begin(storage, ledger)
    if pending is None:
        return False
    try:
        finish(storage, pending, lambda: _commit(storage, pending, _write(storage, pending)))
    except LeaseLostError:
        return False  # another sealer has it by now
    delete_rows(storage, ledger)
    return True


def _begin(storage: Storage, ledger: int) -> Pending | None:
    """Record the pending file; None if the ledger is no longer closed, or another sealer has it."""
    pending = new_file(storage, ledger, ledger)

    def record_file(connection: sa.Connection) -> Pending | None:
        _, now = storage.lock(connection)
        state = sa.select(ledgers.c.state).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        closed = connection.execute(state).scalar() == "closed"
        return pending if closed and record(storage, connection, pending, now) else None

    return storage.backend.transact(record_file)


def _lose_if_empty(storage: Storage, ledger: int) -> bool:
    """Record a closed ledger as lost if all its entries are; return whether they are."""
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
    last = sa.select(sa.func.count(), sa.func.max(entries.c.bytes)).where(*here)
    with storage.backend.snapshot() as connection:
        count, largest = connection.execute(last).one()
    if not count or largest > len(LOST):
        return False

    def record_if_empty(connection: sa.Connection) -> bool:
        storage.lock(connection)
        key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        row = connection.execute(sa.select(ledgers.c.state, ledgers.c.entries).where(*key)).one_or_none()
        if row is None or row != ("closed", count):
            return False
        record_lost_ledger(storage, connection, ledger)
        return True

    return storage.backend.transact(record_if_empty)


def _write(storage: Storage, pending: Pending) -> _WrittenLedger:
    row = _row(storage, pending)

    def facts(groups: list[RowGroup]) -> Mapping[str, str]:
        return facts_metadata(storage.name, storage.origin, [LedgerFacts.of_row(row, groups)])

    with storage.files.create(pending.path) as sink:
        hashed = HashedSink(sink)
        pieces = renewing(storage, pending, _entries(storage, pending, row["first_ordinal"]))
        groups, footer, fingerprints = write_ledger(hashed, pieces, facts)
    size = storage.files.size(pending.path)
    found: list[RowGroup] = []
    chunks: dict[int, list[int]] = {}
    for number, table, sums in read_back(storage.files, pending.path, size, footer, fingerprints, hashed.checksum):
        found.append(RowGroup.of_table(table, found[-1] if found else None, groups[number].skipped))
        chunks[number] = sums
    if found != groups:
        raise reads_differently(storage.files, pending.path)
    return _WrittenLedger(groups, size, footer, chunks)


def _entries(storage: Storage, pending: Pending, following: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the ledger's entries, each piece with how many messages are recorded as lost before it."""
    start, stop = Position(pending.first, 0, 0), Position(pending.first + 1, 0, 0)
    for chunk in read_chunks(storage, start, stop, MESSAGE_SCHEMA.names):
        if isinstance(chunk.table, pa.Table):
            raise taken(storage, pending)  # these messages come from a file: another sealer was faster
        yield chunk.first_ordinal - following, chunk.table
        following = chunk.first_ordinal + chunk.table.num_rows


def _row(storage: Storage, pending: Pending) -> sa.RowMapping:
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == pending.first)
    with storage.backend.snapshot() as connection:
        row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
    if row is None:
        raise taken(storage, pending)
    return row


def _commit(storage: Storage, pending: Pending, file: _WrittenLedger) -> None:
    row_groups = row_groups_to_json(file.groups)
    values: dict[str, Any] = {
        "state": "sealed",
        "path": pending.path,
        "bytes": file.size,
        "file_bytes": file.size,
        "row_groups": row_groups,
        "footer": file.footer,
        "checksums": FileChecksums.of(file.footer, row_groups, file.chunks).to_bytes(),
    }
    # The bounds of the entries, unless some were recorded as lost.
    bounds = bounds_of(file.groups)
    values |= {} if bounds is None else bounds.columns()
    written = sum(group.messages for group in file.groups)
    lost = sa.func.coalesce(sa.func.sum(entries.c.messages), 0)
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == pending.first, sa.not_(KEPT))
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == pending.first)

    def mark_sealed(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        row = connection.execute(
            sa.select(ledgers.c.state, ledgers.c.messages, ledgers.c.path).where(*key)
        ).one_or_none()
        if row is not None and row.path == pending.path:
            return  # done already, and the answer got lost
        if row is None or row.state != "closed":
            raise taken(storage, pending)
        recorded = int(connection.execute(sa.select(lost).where(*here)).scalar_one())
        if written + recorded != row.messages:
            error = DamagedError(
                f"ledger {pending.first} has {row.messages} messages, but its entries hold {written}, and {recorded}"
                " are recorded as lost"
            )
            raise located(error, storage.name, ledger=pending.first)
        forget_pending(storage, connection, pending)
        with resizing(storage, connection, pending.first, pending.first):
            connection.execute(sa.update(ledgers).where(*key).values(**values, sealed_at=now))

    storage.backend.transact(mark_sealed)
