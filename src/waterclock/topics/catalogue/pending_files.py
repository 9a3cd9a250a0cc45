"""Tracks files that are being written for sealed ledgers. Each file has an owner with a lease in the catalogue."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.schema.topic_catalogue import files, ledgers
from waterclock.errors import LeaseLostError, NotFoundError, UnavailableError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.store.ledger_files import LostFileError

LEASE = 30_000_000_000
"""How long an owner may be silent before its file counts as abandoned, ns."""

_READABLE_NAME = 40
_FILE_NAME = re.compile(r"(?:.*/)?(\d{10,})(?:-(\d{10,}))?-[0-9a-f]{16}\.parquet")

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pending(NamedTuple):
    """A file that is being written, for ledgers from ``first`` to ``last``."""

    first: int
    last: int
    path: str
    owner: str


def new_file(storage: Storage, first: int, last: int) -> Pending:
    """Generate a file name that was never used in the topic's store.

    Raises `StoreError` if the store is missing, is another one or cannot be reached: checked first, so that no ledger
    is claimed in vain.
    """
    storage.files.check()
    owner = secrets.token_hex(8)
    numbers = f"{first:010d}" if first == last else f"{first:010d}-{last:010d}"
    return Pending(first, last, f"{_folder(storage)}/{numbers}-{owner}.parquet", owner)


def ledgers_named(path: str) -> range | None:
    """Parse a file's name into the ledgers that it was written for; None if `new_file` did not make the name."""
    found = _FILE_NAME.fullmatch(path)
    return None if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)


def record(storage: Storage, connection: sa.Connection, pending: Pending, now: int) -> bool:
    """Record a pending file, in a transaction with the topic locked; False if another owner works on its ledgers.

    Raises
    ------
    StoreError
        If the topic's files lie in another store by now.
    """
    storage.refuse_moved(connection)
    held = sa.select(files.c.path).where(
        files.c.topic_id == storage.topic_id,
        files.c.ledger.between(pending.first, pending.last),
        files.c.state == "pending",
    )
    if connection.execute(held.limit(1)).one_or_none() is not None:
        return False
    values = {
        "path": pending.path,
        "topic_id": storage.topic_id,
        "ledger": pending.first,
        "state": "pending",
        "owner": pending.owner,
        "until": now + LEASE,
    }
    connection.execute(sa.insert(files), values)
    return True


def renewing(storage: Storage, pending: Pending, pieces: Iterator[_T]) -> Iterator[_T]:
    """Yield the pieces being written, and extend the lease in between."""
    renew_at = moments.monotonic_ns() + LEASE // 3
    for piece in pieces:
        if moments.monotonic_ns() >= renew_at:
            _renew(storage, pending)
            renew_at = moments.monotonic_ns() + LEASE // 3
        yield piece


def _renew(storage: Storage, pending: Pending) -> None:
    def extend_lease(connection: sa.Connection) -> int:
        values = {"until": storage.backend.now(connection) + LEASE}
        return connection.execute(sa.update(files).where(*_mine(pending)).values(values)).rowcount

    if storage.backend.transact(extend_lease) == 0:
        raise taken(storage, pending)


def forget_pending(storage: Storage, connection: sa.Connection, pending: Pending) -> None:
    """Delete the row of the pending file, in the transaction that assigns it to its ledgers.

    Raises `LeaseLostError` if another process has taken it. Raises `StoreError` if the topic's files lie in another
    store by now, which does not have this one.
    """
    storage.refuse_moved(connection)
    if connection.execute(sa.delete(files).where(*_mine(pending))).rowcount == 0:
        raise taken(storage, pending)


def finish(storage: Storage, pending: Pending, work: Callable[[], None]) -> None:
    """Write and commit a pending file; if that fails or is interrupted, remove it and raise the error.

    If it cannot even be removed, because the store is down, it stays pending for a sweep to remove.

    Raises `LeaseLostError` if another process was faster, or considered this one dead.
    """
    try:
        work()
    except (Exception, KeyboardInterrupt) as error:
        try:
            still_ours = _abandon(storage, pending)
        except UnavailableError as second:
            _log.warning("the next sweep will remove %s: %s", storage.files.name(pending.path), second)
            raise error from None
        if isinstance(error, LostFileError) and not still_ours:
            raise taken(storage, pending) from error  # a sweep took it for an abandoned one
        raise


def _abandon(storage: Storage, pending: Pending) -> bool:
    """Remove our file, unless it was committed and only the answer was lost; return whether it was ours."""
    committed = sa.select(ledgers.c.path).where(
        ledgers.c.topic_id == storage.topic_id,
        ledgers.c.ledger.between(pending.first, pending.last),
        ledgers.c.path == pending.path,
    )

    def is_committed(connection: sa.Connection) -> bool:
        storage.lock(connection)
        return connection.execute(committed.limit(1)).one_or_none() is not None

    try:
        if storage.backend.transact(is_committed):
            return True
    except NotFoundError:
        pass  # the whole topic was removed
    storage.files.delete(pending.path)
    ours = sa.delete(files).where(*_mine(pending))
    return storage.backend.transact(lambda connection: connection.execute(ours).rowcount > 0)


def taken(storage: Storage, pending: Pending) -> LeaseLostError:
    """Return the error that another process has the ledgers."""
    which = f"ledger {pending.first}" if pending.first == pending.last else f"ledgers {pending.first}-{pending.last}"
    return LeaseLostError(f"{which} of topic {storage.name!r} was sealed, compacted or deleted by another process")


def _mine(pending: Pending) -> tuple[sa.ColumnElement[bool], ...]:
    return files.c.path == pending.path, files.c.owner == pending.owner, files.c.state == "pending"


def _folder(storage: Storage) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", storage.name)[:_READABLE_NAME].strip("-.")
    return f"{readable or 'topic'}-{storage.topic_id}"
