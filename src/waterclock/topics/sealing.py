"""Sealing: turning a closed ledger's rows into one Parquet file, so that a kill at any point loses nothing.

1. The ledger is closed, by `ledgers.roll` or by an append that found it due.
2. `_begin` records a pending file of a new name, with an owner and a lease.
3. `_write` writes the file, makes it durable, and reads it back to verify it.
4. `_commit` turns ledger and file over to each other in one transaction, if the file is still pending and still ours.
5. `delete_rows` removes the entries. Readers trust the ledger's state, not the rows, so this may come any time later.

Every step can be done again. What a killed owner leaves is removed by `sweeping.sweep` once its lease has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.database.topic_catalogue import ledgers
from waterclock.errors import LeaseLostError, UnavailableError
from waterclock.message import Position
from waterclock.topics.ledgers import roll
from waterclock.topics.pending_files import Pending, finish, new_file, record, renewing, settle, taken
from waterclock.topics.reading import read_chunks
from waterclock.topics.retention import enforce_retention
from waterclock.topics.row_groups import RowGroup, row_groups_to_json
from waterclock.topics.sealed_file import FILE_SCHEMA, SealedFile, write_ledger
from waterclock.topics.sizes import resizing
from waterclock.topics.storage import Storage
from waterclock.topics.sweeping import delete_rows, sweep


class _Written(NamedTuple):
    groups: list[RowGroup]
    size: int
    footer: bytes


def seal_ledgers(storage: Storage) -> int:
    """Seal every ledger that is closed and that nobody else is sealing; give how many.

    First the topic is put in order, as `ledgers_to_seal` does.

    Raises
    ------
    UnavailableError
        Where a file cannot be written, or reads back differently; the ledger stays as it was.
    """
    return sum(seal_ledger(storage, ledger) for ledger in ledgers_to_seal(storage))


def ledgers_to_seal(storage: Storage) -> list[int]:
    """Put the topic in order, and name the ledgers that are closed.

    The open ledger is closed where its age or size says so, what earlier owners left behind is removed, and ledgers
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
    """Seal one ledger; say whether it was ours to seal.

    Raises
    ------
    UnavailableError
        Where its file cannot be written, or reads back differently; the ledger stays as it was.
    """
    pending = _begin(storage, ledger)
    if pending is None:
        return False
    try:
        finish(storage, pending, lambda: _commit(storage, pending, _write(storage, pending)))
    except LeaseLostError:
        return False  # somebody else has it by now
    delete_rows(storage, ledger)
    return True


def _begin(storage: Storage, ledger: int) -> Pending | None:
    """Record the pending file; None where the ledger is not closed any more or somebody else is sealing it."""
    pending = new_file(storage, ledger, ledger)

    def work(connection: sa.Connection) -> Pending | None:
        _, now = storage.lock(connection)
        state = sa.select(ledgers.c.state).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        closed = connection.execute(state).scalar() == "closed"
        return pending if closed and record(storage, connection, pending, now) else None

    return storage.backend.transact(work)


def _write(storage: Storage, pending: Pending) -> _Written:
    with storage.files.create(pending.path) as sink:
        groups, footer = write_ledger(sink, renewing(storage, pending, _entries(storage, pending)))
    size = storage.files.size(pending.path)
    written = SealedFile(storage.files, pending.path, size, footer, check=True)
    if written.measure(FILE_SCHEMA.names) != groups:
        raise UnavailableError(
            f"{storage.files.name(pending.path)} reads back differently from what was written;"
            " its disk or store is not to be trusted"
        )
    return _Written(groups, size, footer)


def _entries(storage: Storage, pending: Pending) -> Iterator[pa.RecordBatch]:
    start, stop = Position(pending.first, 0, 0), Position(pending.first + 1, 0, 0)
    for chunk in read_chunks(storage, start, stop, MESSAGE_SCHEMA.names):
        if isinstance(chunk.table, pa.Table):
            raise taken(storage, pending)  # these come from a file: somebody else has sealed the ledger
        yield chunk.table


def _commit(storage: Storage, pending: Pending, file: _Written) -> None:
    values = {
        "state": "sealed",
        "path": pending.path,
        "bytes": file.size,
        "file_bytes": file.size,
        "row_groups": row_groups_to_json(file.groups),
        "footer": file.footer,
    }
    written = sum(group.messages for group in file.groups)
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == pending.first)

    def work(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        row = connection.execute(
            sa.select(ledgers.c.state, ledgers.c.messages, ledgers.c.path).where(*key)
        ).one_or_none()
        if row is not None and row.path == pending.path:
            return  # done already, and the answer got lost
        if row is None or row.state != "closed":
            raise taken(storage, pending)
        if written != row.messages:
            raise UnavailableError(
                f"ledger {pending.first} of topic {storage.name!r} has {row.messages} messages,"
                f" but its entries hold {written}"
            )
        settle(storage, connection, pending)
        with resizing(storage, connection, pending.first, pending.first):
            connection.execute(sa.update(ledgers).where(*key).values(**values, sealed_at=now))

    storage.backend.transact(work)
