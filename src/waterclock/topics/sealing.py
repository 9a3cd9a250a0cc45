"""Sealing: turning a closed ledger's rows into one Parquet file, so that a kill at any point loses nothing.

1. The ledger is closed, by `ledgers.roll` or by an append that found it due.
2. `_begin` records a pending file of a new name, with an owner and a lease.
3. `_write` writes the file, makes it durable, and reads it back to verify it.
4. `_commit` turns ledger and file over to each other in one transaction, if the file is still pending and still ours.
5. `delete_rows` removes the entries. Readers trust the ledger's state, not the rows, so this may come any time later.

Every step can be done again. What a killed owner leaves is removed by `sweeping.sweep` once its lease has ended.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.database.topic_catalogue import files, ledgers
from waterclock.errors import LeaseLostError, NotFoundError, UnavailableError
from waterclock.message import Position
from waterclock.topics.ledger_files import LostFileError
from waterclock.topics.ledgers import roll
from waterclock.topics.reading import read_chunks
from waterclock.topics.retention import enforce_retention
from waterclock.topics.row_groups import RowGroup, row_groups_to_json
from waterclock.topics.sealed_file import FILE_SCHEMA, SealedFile, write_ledger
from waterclock.topics.storage import Storage
from waterclock.topics.sweeping import delete_rows, sweep

LEASE = 30_000_000_000
"""How long a sealer may be silent before its file counts as abandoned, ns."""

_READABLE_NAME = 40


class _Pending(NamedTuple):
    ledger: int
    path: str
    owner: str


class _Written(NamedTuple):
    groups: list[RowGroup]
    size: int
    footer: bytes


def seal_ledgers(storage: Storage) -> int:
    """Seal every ledger that is closed and that nobody else is sealing; give how many.

    First the topic is put in order: the open ledger is closed where its age or size says so, what earlier owners left
    behind is removed, and ledgers that are older than the topic's retention are deleted.

    Raises
    ------
    UnavailableError
        Where a file cannot be written, or reads back differently; the ledger stays as it was.
    """
    roll(storage, only_if_due=True)
    sweep(storage)
    enforce_retention(storage)
    sealed = 0
    for ledger in _closed_ledgers(storage):
        pending = _begin(storage, ledger)
        if pending is None:
            continue
        try:
            _seal(storage, pending)
        except LeaseLostError:
            continue  # somebody else has it by now
        sealed += 1
    return sealed


def _closed_ledgers(storage: Storage) -> list[int]:
    statement = (
        sa.select(ledgers.c.ledger)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "closed")
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        return list(connection.execute(statement).scalars())


def _seal(storage: Storage, pending: _Pending) -> None:
    try:
        _commit(storage, pending, _write(storage, pending))
    except Exception as error:
        still_ours = _abandon(storage, pending)
        if isinstance(error, LostFileError) and not still_ours:
            raise _taken(storage, pending) from error  # a sweep took it for an abandoned one
        raise
    delete_rows(storage, pending.ledger)


def _begin(storage: Storage, ledger: int) -> _Pending | None:
    """Record the pending file; None where the ledger is not closed any more or somebody else is sealing it."""
    owner = secrets.token_hex(8)
    path = f"{_folder(storage)}/{ledger:010d}-{owner}.parquet"

    def work(connection: sa.Connection) -> _Pending | None:
        _, now = storage.lock(connection)
        state = sa.select(ledgers.c.state).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        if connection.execute(state).scalar() != "closed":
            return None
        held = sa.select(files.c.path).where(
            files.c.topic_id == storage.topic_id,
            files.c.ledger == ledger,
            files.c.state == "pending",
        )
        if connection.execute(held.limit(1)).one_or_none() is not None:
            return None
        connection.execute(
            sa.insert(files),
            {
                "path": path,
                "topic_id": storage.topic_id,
                "ledger": ledger,
                "state": "pending",
                "owner": owner,
                "until": now + LEASE,
            },
        )
        return _Pending(ledger, path, owner)

    return storage.backend.transact(work)


def _folder(storage: Storage) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", storage.name)[:_READABLE_NAME].strip("-.")
    return f"{readable or 'topic'}-{storage.topic_id}"


def _write(storage: Storage, pending: _Pending) -> _Written:
    with storage.files.create(pending.path) as sink:
        groups, footer = write_ledger(sink, _entries(storage, pending))
    size = storage.files.size(pending.path)
    written = SealedFile(storage.files, pending.path, size, footer, check=True)
    if written.measure(FILE_SCHEMA.names) != groups:
        raise UnavailableError(
            f"{storage.files.name(pending.path)} reads back differently from what was written;"
            " its disk or store is not to be trusted"
        )
    return _Written(groups, size, footer)


def _entries(storage: Storage, pending: _Pending) -> Iterator[pa.RecordBatch]:
    renew_at = time.monotonic_ns() + LEASE // 3
    start, stop = Position(pending.ledger, 0, 0), Position(pending.ledger + 1, 0, 0)
    for chunk in read_chunks(storage, start, stop, MESSAGE_SCHEMA.names):
        if isinstance(chunk.table, pa.Table):
            raise _taken(storage, pending)  # these come from a file: somebody else has sealed the ledger
        if time.monotonic_ns() >= renew_at:
            _renew(storage, pending)
            renew_at = time.monotonic_ns() + LEASE // 3
        yield chunk.table


def _renew(storage: Storage, pending: _Pending) -> None:
    def work(connection: sa.Connection) -> int:
        values = {"until": storage.backend.now(connection) + LEASE}
        return connection.execute(sa.update(files).where(*_mine(pending)).values(values)).rowcount

    if storage.backend.transact(work) == 0:
        raise _taken(storage, pending)


def _commit(storage: Storage, pending: _Pending, file: _Written) -> None:
    values = {
        "state": "sealed",
        "path": pending.path,
        "file_bytes": file.size,
        "row_groups": row_groups_to_json(file.groups),
        "footer": file.footer,
    }
    written = sum(group.messages for group in file.groups)
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == pending.ledger)

    def work(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        row = connection.execute(
            sa.select(ledgers.c.state, ledgers.c.messages, ledgers.c.path).where(*key)
        ).one_or_none()
        if row is not None and row.path == pending.path:
            return  # done already, and the answer got lost
        if row is None or row.state != "closed":
            raise _taken(storage, pending)
        if written != row.messages:
            raise UnavailableError(
                f"ledger {pending.ledger} of topic {storage.name!r} has {row.messages} messages,"
                f" but its entries hold {written}"
            )
        if connection.execute(sa.delete(files).where(*_mine(pending))).rowcount == 0:
            raise _taken(storage, pending)
        connection.execute(sa.update(ledgers).where(*key).values(**values, sealed_at=now))

    storage.backend.transact(work)


def _abandon(storage: Storage, pending: _Pending) -> bool:
    """Remove our file, unless it was committed after all and only the answer got lost; say whether it was ours."""
    committed = sa.select(ledgers.c.path).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.path == pending.path)

    def work(connection: sa.Connection) -> bool:
        storage.lock(connection)
        return connection.execute(committed).one_or_none() is not None

    try:
        if storage.backend.transact(work):
            return True
    except NotFoundError:
        pass  # the whole topic was removed
    storage.files.delete(pending.path)
    ours = sa.delete(files).where(*_mine(pending))
    return storage.backend.transact(lambda connection: connection.execute(ours).rowcount > 0)


def _taken(storage: Storage, pending: _Pending) -> LeaseLostError:
    return LeaseLostError(f"ledger {pending.ledger} of topic {storage.name!r} was sealed or deleted by somebody else")


def _mine(pending: _Pending) -> tuple[sa.ColumnElement[bool], ...]:
    return files.c.path == pending.path, files.c.owner == pending.owner, files.c.state == "pending"
